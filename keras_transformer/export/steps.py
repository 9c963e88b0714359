"""The encoder and one step of the decoder as functions for other runtimes."""

from typing import Any

import numpy as np
from keras import ops

from keras_transformer.errors import UserError
from keras_transformer.layers.caches import (
    CompleteCache,
    DecoderBlockCache,
    DecoderCache,
    GrowingCache,
)
from keras_transformer.layers.effective_weights import plain_copy
from keras_transformer.models import Transformer
from keras_transformer.models.decoding_state import DecodingState
from keras_transformer.models.ensemble import copy_of


def convertible(model: Any, int8_embeddings: bool = False) -> Transformer:
    """Returns the model, or a copy, in float32 without loops, which the converters do not know.

    With `int8_embeddings`, the matrices of the embeddings are quantized.
    """
    if model.config.sliding_window is not None:
        rule = "ONNX and LiteRT exports have no sliding window; a SavedModel has it"
        raise UserError(f"{rule}. Received: sliding_window={model.config.sliding_window}")
    model = plain_copy(model)
    is_simple = model.config.flash_attention is None and model.dtype_policy.name == "float32"
    if is_simple and not int8_embeddings:
        return model
    copy = copy_of(model, "float32", flash_attention=None)
    if int8_embeddings:
        for embedding in {copy.source_embedding, copy.target_embedding}:
            embedding.embedding = _Int8Embedding(embedding.embeddings)
    return copy


class _Int8Embedding:
    """Replaces a `keras.layers.ReversibleEmbedding`: a matrix in int8 with a scale for each row.

    The converters quantize each column of a factor of a product so that its largest number becomes
    127. Here it is 127 already, so they store the matrix of the lookup again, and it is shared.
    """

    quantization_mode = None  # `TiedEmbedding` calls it as a plain embedding.

    def __init__(self, embeddings):
        self.embeddings = ops.convert_to_numpy(embeddings)
        largest = np.abs(self.embeddings).max(axis=1, keepdims=True)
        # LiteRT quantizes the scales too, with one step for all: a large one would erase others.
        largest = np.where(largest > 0, largest, np.max(largest) or 1.0)
        self.scales = (largest / 127).astype("float32")
        self.rows = np.rint(self.embeddings / self.scales)

    def __call__(self, inputs, reverse=False):
        if reverse:
            return ops.matmul(inputs, self.rows.T) * self.scales[:, 0]
        rows = ops.take(self.rows.astype("int8"), inputs, axis=0)
        return ops.cast(rows, "float32") * ops.take(self.scales, inputs, axis=0)


def concrete_functions(model: Transformer) -> dict[str, Any]:
    """Returns concrete functions `encode` and `decode` of a model, for any batch and lengths.

    docs/runtimes.md describes their named tensors.
    """
    import tensorflow as tf

    def encode(source):
        outputs, source_mask = model.encode(source, training=False)
        named = {"source_mask": source_mask}
        for number, block in enumerate(model.decoder.blocks):
            keys, values = block.cross_attention.make_cache(outputs)
            named |= {f"cross_key_{number}": keys, f"cross_value_{number}": values}
        return named

    def decode(tokens, source_mask, **tensors):
        blocks = []
        for number in range(len(model.decoder.blocks)):
            keys, values = tensors[f"self_key_{number}"], tensors[f"self_value_{number}"]
            past = GrowingCache((keys,), (values,))
            cross = CompleteCache(tensors[f"cross_key_{number}"], tensors[f"cross_value_{number}"])
            blocks.append(DecoderBlockCache(past, cross))
        cache = DecoderCache(ops.shape(tensors["self_key_0"])[2], tuple(blocks))
        logits, state = model.decode_step(tokens, None, DecodingState(cache, source_mask))
        named = {"logits": logits}
        for number, block in enumerate(state.cache.blocks):
            [keys], [values] = block.self_attention
            named |= {f"new_self_key_{number}": keys, f"new_self_value_{number}": values}
        return named

    inputs = {
        "tokens": tf.TensorSpec([None], tf.int32),
        "source_mask": tf.TensorSpec([None, None], tf.bool),
    }
    for number, block in enumerate(model.decoder.blocks):
        for kind, attention in (("self", block.self_attention), ("cross", block.cross_attention)):
            for name, dim in (("key", attention.key_dim), ("value", attention.value_dim)):
                shape = [None, attention.num_heads, None, dim]
                inputs[f"{kind}_{name}_{number}"] = tf.TensorSpec(shape, tf.float32)

    def traced(function, **inputs):
        return tf.function(function, autograph=False).get_concrete_function(**inputs)

    source = tf.TensorSpec([None, None], tf.int32)
    return {"encode": traced(encode, source=source), "decode": traced(decode, **inputs)}
