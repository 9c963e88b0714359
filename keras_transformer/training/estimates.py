"""Estimates before a training: its parameters, its memory on a device, the time of a step."""

import dataclasses
import gc
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from keras_transformer.data.tokenizer import EOS_ID
from keras_transformer.layers.blockwise_attention import MIN_BLOCK
from keras_transformer.losses import LossModel
from keras_transformer.losses.loss_model import LOGITS_BYTES
from keras_transformer.models import TrainingRecipe, Transformer, TransformerConfig
from keras_transformer.settings.transformer_config import count_parameters, head_widths
from keras_transformer.training.compilation import compile_model

# Subwords of an average sentence of WMT 2014.
SENTENCE = 32
_MEASURED_STEPS = 3
# Maximum number of tokens of a measured step on a CPU: a few seconds with `big`.
CPU_TOKENS = 512
# Share of the memory that is left by the framework and by gaps between blocks.
USABLE_MEMORY = 0.9


@dataclasses.dataclass(frozen=True)
class MemoryEstimate:
    """Estimated bytes of a step on each device: 2% below to 15% above those measured on a CPU."""

    weights: int  # with their copy in half precision and their moving average, if there are any
    gradients: int  # with copies for the exchange between devices and the sum over micro-batches
    moments: int  # Adam's two
    activations: int  # kept by the blocks for the backward pass
    logits: int  # of a slice (see `LossModel`): scores, softmax and two steps of the gradient

    @property
    def fixed(self) -> int:
        """Bytes that do not depend on the batch."""
        return self.weights + self.gradients + self.moments

    @property
    def total(self) -> int:
        """All bytes."""
        return self.fixed + self.activations + self.logits


def estimate_memory(
    config: TransformerConfig,
    tokens: int,
    width: int,
    mixed_precision: bool = False,
    num_devices: int = 1,
    micro_batches: int = 1,
    averages: bool = False,
    passes: int = 1,
) -> MemoryEstimate:
    """Returns the estimate for `tokens` positions on each side, in sentences of length `width`.

    `averages` says whether the recipe has an `ema_momentum`; `passes` is 2 with R-Drop, which
    computes each sentence twice. All parameters are assumed to be trained.
    """
    parameters = count_parameters(config)
    size = 2 if mixed_precision else 4
    d, hidden = config.d_model, config.intermediate_dim
    queries, values = head_widths(config)
    # For each position: queries, keys, values and the outputs of attention before and after heads
    # are joined; attention weights in single precision, and in half precision if it is used.
    attention = size * (3 * queries + 3 * values)
    # Attention by blocks keeps no weights.
    weight = 0 if config.flash_attention else config.num_heads * (6 if mixed_precision else 4)
    cross = attention + weight * width
    encoder_self = attention + weight * _keys_of_a_query(config, width)
    decoder_self = attention + weight * _keys_of_a_query(config, width, is_causal=True)
    # Mask of the dropout, input and output of the norm in single precision, sub-layer input.
    residual = 8 * d + 2 * size * d
    feed_forward = size * hidden
    encoder_block = encoder_self + feed_forward + 2 * residual
    decoder_block = decoder_self + cross + feed_forward + 3 * residual
    encoder, decoder = config.num_encoder_layers, config.num_decoder_layers
    if config.remat:  # The inputs of all blocks, and the activations inside one block.
        activations = (encoder + decoder) * size * d + max(encoder_block, decoder_block)
    else:
        activations = encoder * encoder_block + decoder * decoder_block
    return MemoryEstimate(
        weights=parameters * (4 + 2 * mixed_precision + 4 * averages),
        gradients=parameters * 4 * (1 + (num_devices > 1) + (micro_batches > 1)),
        moments=parameters * 8,
        activations=passes * tokens * activations,
        logits=4 * min(passes * tokens * config.output_vocab_size * 4, LOGITS_BYTES),
    )


def _keys_of_a_query(config, width, is_causal=False):
    """Returns the number of attention weights of a position and a head, in self-attention."""
    if config.sliding_window is None:
        return width
    neighbors = min(config.sliding_window - 1, width)
    block = max(neighbors, min(MIN_BLOCK, width))
    num_queries = math.ceil(width / block) * block  # The last block is filled up.
    num_keys = block + (1 if is_causal else 2) * neighbors
    return math.ceil(num_queries * num_keys / width)


def count_operations(config: TransformerConfig, tokens: int, width: int) -> int:
    """Returns the floating-point operations of the matrix products of a training step.

    It has `tokens` positions on each side, in sentences of length `width`. A product has two
    operations for each weight and position; the backward pass has two products for each of the
    forward pass.

    Reference: Vaswani et al. (2017), Tables 1 and 2.
    """
    d = config.d_model
    queries, values = head_widths(config)
    projections, feed_forward = 2 * d * (queries + values), 2 * d * config.intermediate_dim
    encoder = projections + feed_forward + (queries + values) * _keys_of_a_query(config, width)
    causal_keys = _keys_of_a_query(config, width, is_causal=True)
    decoder = 2 * projections + feed_forward + (queries + values) * (causal_keys + width)
    weights = config.num_encoder_layers * encoder + config.num_decoder_layers * decoder
    return 6 * tokens * (weights + d * config.output_vocab_size)


def most_tokens(memory: float, config: TransformerConfig, width: int, **how: Any) -> int:
    """Returns the maximum number of tokens in a batch on a device with `memory` bytes; can be 0.

    `how` has the further arguments of `estimate_memory`.
    """
    estimate = estimate_memory(config, 1, width, **how)
    room = memory * USABLE_MEMORY - estimate.fixed
    # Logits grow with the tokens up to one slice, and stay the same beyond.
    in_a_slice = room / (estimate.activations + estimate.logits)
    beyond = (room - 4 * LOGITS_BYTES) / estimate.activations
    return max(0, math.floor(max(in_a_slice, beyond)))


def measure_step(
    config: TransformerConfig,
    recipe: TrainingRecipe,
    tokens: int,
    mixed_precision: bool,
    jit_compile: bool,
    progress: Callable[[int, int], object],
) -> tuple[float, int]:
    """Returns median seconds and tokens of a step on random ids; halves `tokens` if memory ends."""
    policy = "mixed_bfloat16" if mixed_precision else None
    width = min(SENTENCE, recipe.max_length)
    while True:
        transformer = Transformer(config, dtype=policy)
        model = LossModel(transformer, recipe.label_smoothing, r_drop=recipe.r_drop)
        compile_model(model, recipe, jit_compile=jit_compile)
        try:
            return _measure(model, max(1, tokens // width), width, progress)
        except Exception as error:  # Each backend has its own.
            if not _is_out_of_memory(error) or tokens // 2 < width:
                raise
        # On JAX, a step that failed has given its weights away.
        del transformer, model
        gc.collect()
        tokens //= 2


def _is_out_of_memory(error):
    names = "ResourceExhaustedError", "OutOfMemoryError"  # of TensorFlow and torch
    return type(error).__name__ in names or "RESOURCE_EXHAUSTED" in str(error)


def _measure(model, rows, width, progress):
    generator = np.random.default_rng(0)
    sizes = {"source": model.config.vocab_size, "target": model.config.output_vocab_size}
    inputs = {}
    for name, size in sizes.items():
        ids = generator.integers(EOS_ID + 1, size, (rows, width))
        inputs[name] = keras.ops.convert_to_tensor(ids, "int32")
    weights = keras.ops.full((rows, width), 1 / (rows * width))
    batch = inputs, inputs["target"], weights
    seconds = []
    # The first step is traced, so its time does not count.
    for number in range(_MEASURED_STEPS + 1):
        start = time.monotonic()
        model.train_on_batch(*batch)
        seconds.append(time.monotonic() - start)
        progress(number + 1, _MEASURED_STEPS + 1)
    return statistics.median(seconds[1:]), rows * width
