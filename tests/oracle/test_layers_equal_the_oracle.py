"""Outputs and gradients of our layers and of the whole model are the oracle's, over many shapes.

Their bounds are `SWEEP_BOUNDS`.
"""

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from keras_transformer.layers import DecoderBlock, EncoderBlock
from keras_transformer.models import Transformer, TransformerConfig
from keras_transformer.training import LabelSmoothedCrossEntropy
from tests.layers.oracle_parameters import block_parameters, randomize, transformer_parameters
from tests.oracle import loss as oracle_loss
from tests.oracle import transformer as oracle
from tests.oracle.slopes import slopes
from tests.precision.against_oracle import (
    SWEEP_BOUNDS,
    gradient_tree,
    relative_error,
    slope_error,
    transformer_logits,
    transformer_slopes,
)
from tests.precision.gradients import array, has_float64, value_and_gradients

# float64 shows a wrong term at once; float32 is measured in tests/precision.
DTYPES = [
    pytest.param(
        dtype,
        marks=pytest.mark.slow
        if dtype == "float32" and has_float64()
        else pytest.mark.skipif(
            dtype == "float64" and not has_float64(), reason="float64 is not whole here"
        ),
    )
    for dtype in SWEEP_BOUNDS
]
# JAX compiles every operation anew for every shape.
EXAMPLES = 3 if keras.backend.backend() == "jax" else 8
SWEEP = settings(derandomize=True, deadline=None, max_examples=EXAMPLES, database=None)

LENGTHS = st.integers(1, 5)
WIDTHS = {
    "num_heads": st.integers(1, 3),
    "key_dim": st.integers(1, 4),
    "value_dim": st.integers(1, 4),
    "intermediate_dim": st.integers(1, 9),
    "norm": st.sampled_from(["post", "pre"]),
}


@st.composite
def block_cases(draw):
    """Sizes of a block and of its inputs, and which masks it gets."""
    case = {name: draw(values) for name, values in WIDTHS.items()}
    case |= {name: draw(st.booleans()) for name in ("use_bias", "padding", "masks")}
    case |= {name: draw(LENGTHS) for name in ("batch", "length", "source_length")}
    return case | {"d_model": draw(st.integers(4, 9)), "seed": draw(st.integers(0, 2**16))}


def states_and_masks(case, block_class, dtype):
    """Call arguments `[batch, ...]` of a kind of block; a whole row may be masked."""
    rng = np.random.default_rng(case["seed"])
    batch, length, source_length = case["batch"], case["length"], case["source_length"]
    states, masks = [rng.normal(size=(batch, length, case["d_model"])).astype(dtype)], {}
    if case["padding"]:
        masks["padding_mask"] = np.arange(length) < rng.integers(0, length + 1, (batch, 1))
    if case["masks"]:
        masks["attention_mask"] = rng.random((batch, length, length)) < 0.7
    if block_class is DecoderBlock:
        states.append(rng.normal(size=(batch, source_length, case["d_model"])).astype(dtype))
        if case["padding"]:
            masks["encoder_padding_mask"] = rng.random((batch, source_length)) < 0.7
        if case["masks"]:
            masks["encoder_attention_mask"] = rng.random((batch, length, source_length)) < 0.7
    return states, masks


BLOCKS = {EncoderBlock: oracle.encoder_block, DecoderBlock: oracle.decoder_block}
# Masks by the names of the oracle.
MASKS = {
    "padding_mask": "padding_mask",
    "attention_mask": "mask",
    "encoder_padding_mask": "memory_mask",
    "encoder_attention_mask": "cross_mask",
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block_class", BLOCKS)
@SWEEP
@given(case=block_cases())
def test_blocks(block_class, dtype, case):
    states, masks = states_and_masks(case, block_class, dtype)
    settings = {name: case[name] for name in (*WIDTHS, "use_bias")}
    block = block_class(**settings, dropout=0.0, dtype=dtype)
    block.build(*(states_.shape for states_ in states))
    randomize(block, case["seed"])
    variables = [keras.Variable(states_, dtype=dtype) for states_ in states]
    upstream = np.random.default_rng(0).normal(size=states[0].shape).astype(dtype)

    def outputs():
        return block(*map(ops.copy, variables), **masks)

    def expected(params, *states):
        rows = []
        for row in range(case["batch"]):
            masks_of_row = {MASKS[name]: mask[row] for name, mask in masks.items()}
            states_of_row = [states_[row] for states_ in states]
            arguments = params, case["num_heads"], *states_of_row
            rows.append(BLOCKS[block_class](*arguments, **masks_of_row, norm=case["norm"]))
        return np.stack(rows)

    params = block_parameters(block)
    _, gradients = value_and_gradients(
        lambda: ops.sum(ops.multiply(outputs(), upstream)), [*block.trainable_variables, *variables]
    )
    of_weights, of_states = gradients[: -len(variables)], gradients[-len(variables) :]
    gradients = [gradient_tree(block, of_weights, block_parameters), *of_states]
    wanted = slopes(lambda tree: (expected(*tree) * upstream).sum(), [params, *states])
    output_bound, gradient_bound = SWEEP_BOUNDS[dtype]
    assert relative_error(array(outputs()), expected(params, *states)) < output_bound
    assert slope_error(gradients, wanted) < gradient_bound


@st.composite
def model_cases(draw):
    """A configuration, the sizes of a batch, and the loss."""
    config = {name: draw(values) for name, values in WIDTHS.items()}
    config |= {"vocab_size": draw(st.integers(4, 12)), "d_model": 2 * draw(st.integers(2, 4))}
    config["target_vocab_size"] = draw(st.none() | st.integers(4, 12))
    config["num_encoder_layers"], config["num_decoder_layers"] = draw(
        st.sampled_from([(1, 1), (2, 1), (1, 2)])
    )
    if draw(st.booleans()):
        config |= {"position": "learned", "max_length": 7}
    sizes = [draw(LENGTHS) for _ in range(3)]
    loss = draw(st.floats(0.0, 0.5)), draw(st.sampled_from(["t2t", "keras"]))
    return {"config": config, "sizes": sizes, "loss": loss, "seed": draw(st.integers(0, 2**16))}


@pytest.mark.parametrize("dtype", DTYPES)
@settings(SWEEP, max_examples=min(EXAMPLES, 4))
@given(case=model_cases())
def test_whole_models_with_their_loss(dtype, case):
    config = TransformerConfig(**case["config"], dropout=0.0)
    model = Transformer(config, dtype=dtype)
    randomize(model, case["seed"])
    rng = np.random.default_rng(case["seed"])
    batch, source_length, target_length = case["sizes"]

    def ids(vocabulary, length):
        is_token = np.arange(length) < rng.integers(0, length + 1, (batch, 1))
        return np.where(is_token, rng.integers(1, vocabulary, (batch, length)), 0).astype("int32")

    source = ids(config.vocab_size, source_length)
    target = ids(config.output_vocab_size, target_length)
    labels = rng.integers(0, config.output_vocab_size, target.shape).astype("int32")
    weights = rng.random(target.shape).astype(dtype)
    loss = LabelSmoothedCrossEntropy(*case["loss"])

    value, gradients = value_and_gradients(
        lambda: loss(labels, model({"source": source, "target": target}), weights),
        model.trainable_variables,
    )

    def expected_loss(logits):
        losses = oracle_loss.smoothed_cross_entropy(labels, logits, *case["loss"])
        return (losses * weights).sum()

    logits = transformer_logits(model, source, target)
    output_bound, gradient_bound = SWEEP_BOUNDS[dtype]
    assert relative_error(array(model({"source": source, "target": target})), logits) < output_bound
    assert relative_error(value, expected_loss(logits)) < output_bound
    wanted = transformer_slopes(model, source, target, expected_loss)
    gradient = gradient_tree(model, gradients, transformer_parameters)
    assert slope_error(gradient, wanted) < gradient_bound
