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
from tests.oracle import backward
from tests.oracle import loss as oracle_loss
from tests.oracle import transformer as oracle
from tests.precision.against_oracle import (
    SWEEP_BOUNDS,
    add_trees,
    gradient_tree,
    relative_error,
    transformer_gradients,
    transformer_logits,
    tree_error,
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


def inputs_and_masks(case, dtype):
    """Call arguments `[batch, ...]` of both kinds of block; a whole row may be masked."""
    rng = np.random.default_rng(case["seed"])
    batch, length, source_length = case["batch"], case["length"], case["source_length"]
    inputs, memory, upstream = (
        rng.normal(size=(batch, size, case["d_model"])).astype(dtype)
        for size in (length, source_length, length)
    )
    masks = {}
    if case["padding"]:
        masks["padding_mask"] = np.arange(length) < rng.integers(0, length + 1, (batch, 1))
        masks["encoder_padding_mask"] = rng.random((batch, source_length)) < 0.7
    if case["masks"]:
        masks["attention_mask"] = rng.random((batch, length, length)) < 0.7
        masks["encoder_attention_mask"] = rng.random((batch, length, source_length)) < 0.7
    return inputs, memory, upstream, masks


def block_arguments(case):
    names = (*WIDTHS, "use_bias")
    return {**{name: case[name] for name in names}, "dropout": 0.0}


def check_block(block, variables, masks, upstream, forward, backward_of_row):
    """Hold a built block against the oracle's functions of `(params, row)`."""

    def outputs():
        return block(*[ops.copy(variable) for variable in variables], **masks)

    params, rows = block_parameters(block), range(len(upstream))
    expected = np.stack([forward(params, row) for row in rows])
    of_rows = [backward_of_row(params, row) for row in rows]
    _, gradients = value_and_gradients(
        lambda: ops.sum(ops.multiply(outputs(), upstream)), [*block.trainable_variables, *variables]
    )
    own = gradient_tree(block, gradients[: -len(variables)], block_parameters)
    actual = [own, *gradients[-len(variables) :]]
    wanted = of_rows[0][0]
    for row in of_rows[1:]:
        wanted = add_trees(wanted, row[0])
    wanted = [wanted, *(np.stack(one) for one in list(zip(*of_rows, strict=True))[1:])]
    output_bound, gradient_bound = SWEEP_BOUNDS[block.compute_dtype]
    assert relative_error(array(outputs()), expected) < output_bound
    assert tree_error(actual, wanted) < gradient_bound


def of_row(masks, row, names):
    """The oracle's mask arguments for one sentence, by their names there and here."""
    return {theirs: masks[ours][row] for theirs, ours in names.items() if ours in masks}


@pytest.mark.parametrize("dtype", DTYPES)
@SWEEP
@given(case=block_cases())
def test_encoder_blocks(dtype, case):
    inputs, _, upstream, masks = inputs_and_masks(case, dtype)
    masks = {name: mask for name, mask in masks.items() if not name.startswith("encoder")}
    block = EncoderBlock(**block_arguments(case), dtype=dtype)
    block.build(inputs.shape)
    randomize(block, case["seed"])
    names = {"padding_mask": "padding_mask", "mask": "attention_mask"}

    def arguments(row):
        return {**of_row(masks, row, names), "norm": case["norm"]}

    heads = case["num_heads"]
    check_block(
        block,
        [keras.Variable(inputs, dtype=dtype)],
        masks,
        upstream,
        lambda params, row: oracle.encoder_block(params, heads, inputs[row], **arguments(row)),
        lambda params, row: backward.encoder_block_backward(
            params, heads, inputs[row], upstream[row], **arguments(row)
        ),
    )


@pytest.mark.parametrize("dtype", DTYPES)
@SWEEP
@given(case=block_cases())
def test_decoder_blocks(dtype, case):
    inputs, memory, upstream, masks = inputs_and_masks(case, dtype)
    block = DecoderBlock(**block_arguments(case), dtype=dtype)
    block.build(inputs.shape, memory.shape)
    randomize(block, case["seed"])
    names = {
        "padding_mask": "padding_mask",
        "mask": "attention_mask",
        "memory_mask": "encoder_padding_mask",
        "cross_mask": "encoder_attention_mask",
    }

    def arguments(row):
        return {"memory": memory[row], **of_row(masks, row, names), "norm": case["norm"]}

    heads = case["num_heads"]
    check_block(
        block,
        [keras.Variable(inputs, dtype=dtype), keras.Variable(memory, dtype=dtype)],
        masks,
        upstream,
        lambda params, row: oracle.decoder_block(params, heads, inputs[row], **arguments(row)),
        lambda params, row: backward.decoder_block_backward(
            params, heads, inputs[row], upstream[row], **arguments(row)
        ),
    )


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
    logits = transformer_logits(model, source, target)
    output_bound, gradient_bound = SWEEP_BOUNDS[dtype]
    assert relative_error(array(model({"source": source, "target": target})), logits) < output_bound
    losses = oracle_loss.smoothed_cross_entropy(labels, logits, *case["loss"])
    assert relative_error(value, (losses * weights).sum()) < output_bound
    of_logits = oracle_loss.smoothed_cross_entropy_gradient(labels, logits, *case["loss"])
    expected = transformer_gradients(model, source, target, of_logits * weights[..., None])
    own = gradient_tree(model, gradients, transformer_parameters)
    assert tree_error(own, expected) < gradient_bound
