"""torch.nn's modules and our layers compute the same, and hand their weights to each other."""

import functools

import keras
import pytest

from keras_transformer.bridges import from_torch, to_torch
from keras_transformer.layers import (
    DecoderBlock,
    Encoder,
    EncoderBlock,
    MultiHeadAttention,
)
from tests.bridges.cases import MASKED, Case
from tests.bridges.comparison import DTYPES, assert_same_weights, assert_small_errors
from tests.bridges.torch_peer import KINDS, calls, make_module, torch_errors
from tests.closeness import assert_close
from tests.layers.oracle_parameters import array, randomize

torch = pytest.importorskip("torch")
nn = torch.nn
BLOCK = {"num_heads": 2, "intermediate_dim": 6}
SHAPE = (None, None, 8)


# Stacks contain blocks.
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind, norm", [
    (KINDS[0], "post"), (KINDS[-2], "pre"), (KINDS[-1], "post"),
])  # fmt: skip
def test_ours_equals_torchs(kind, norm, dtype):
    assert_small_errors(torch_errors(kind, Case(**MASKED, norm=norm, dtype=dtype)), dtype)


@pytest.mark.parametrize("kind, options", [
    (KINDS[0], {"kdim": 3, "vdim": 5}),
    # Feed-forward networks and norms have biases here, which are zero then.
    (KINDS[-1], {"bias": False}),
])  # fmt: skip
def test_modules_of_other_widths_or_without_biases_equal_torchs(kind, options):
    assert_small_errors(torch_errors(kind, Case(), **options), "float32")


@pytest.mark.parametrize("kind, norm", [
    (KINDS[0], "post"), (KINDS[-2], "post"), (KINDS[-1], "pre")
])  # fmt: skip
def test_round_trip(kind, norm):
    """Every weight and setting comes back, both ways."""
    module = make_module(kind, Case(norm=norm, activation="gelu", epsilon=1e-4))
    layer = from_torch(module)
    exported = to_torch(layer)
    assert not exported.training
    assert str(exported) == str(module)
    state, expected = exported.state_dict(), module.state_dict()
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[name], expected[name]) for name in expected)
    again = from_torch(exported)
    assert_same_weights(again, layer)
    assert strip_names(again.get_config()) == strip_names(layer.get_config())


def strip_names(config):
    """A configuration without the names that Keras makes up."""
    if isinstance(config, dict):
        return {key: strip_names(value) for key, value in config.items() if key != "name"}
    return [strip_names(value) for value in config] if isinstance(config, list) else config


def test_the_papers_block_without_biases_is_exported_with_zeros():
    block = built(DecoderBlock(**BLOCK, norm="pre"), SHAPE, SHAPE)
    randomize(block)
    module = to_torch(block)
    inputs, ours, theirs = calls(type(module).__name__, Case(), block, module)
    want = theirs(*map(torch.tensor, inputs)).detach().numpy()
    assert_close(array(ours(*inputs)), want)


def test_the_dtype_is_the_modules_unless_another_is_asked_for():
    module = nn.MultiheadAttention(8, 2, dtype=torch.bfloat16)
    assert from_torch(module, dtype="mixed_bfloat16").dtype_policy.name == "mixed_bfloat16"
    exported = to_torch(from_torch(module))
    assert exported.in_proj_weight.dtype == torch.bfloat16
    assert torch.equal(exported.in_proj_weight, module.in_proj_weight)


def with_(module, **attributes):
    for name, value in attributes.items():
        setattr(module, name, value)
    return module


ENCODER = functools.partial(nn.TransformerEncoderLayer, 8, 2, 6)
DECODER = functools.partial(nn.TransformerDecoderLayer, 8, 2, 6)


@pytest.mark.parametrize("module,message", [
    (with_(DECODER(dropout=0.0), multihead_attn=nn.MultiheadAttention(8, 2, kdim=5, vdim=5)),
     "as wide as the block. Received: embed_dim=8, kdim=5, vdim=5"),
    (nn.Linear(2, 2), "one of MultiheadAttention, .*Received: module of type Linear"),
    (nn.MultiheadAttention(8, 2, add_bias_kv=True), "Received: add_bias_kv=True"),
    (ENCODER(activation=nn.GELU(approximate="tanh")), "exact GELU. Received: activation=GELU"),
    (with_(ENCODER(), norm1=nn.LayerNorm(8, eps=1e-3)),
     "`layer_norm_eps` must be the same everywhere. Received: .*0.001, 1e-05"),
])  # fmt: skip
def test_what_our_layers_do_not_have_is_refused(module, message):
    with pytest.raises(ValueError, match=message):
        from_torch(module)


def built(layer, *shapes):
    layer.build(*shapes)
    return layer


@pytest.mark.parametrize("make,message", [
    (lambda: keras.layers.Dense(3), "one of Decoder, .*Received: layer of type Dense"),
    (lambda: EncoderBlock(**BLOCK), "build it first. Received: EncoderBlock .*not built"),
    (lambda: built(MultiHeadAttention(2, 3), SHAPE, SHAPE),
     "width / num_heads.*Received: key_dim=3, value_dim=3, num_heads=2, width 8"),
    (lambda: built(EncoderBlock(**BLOCK, activation="silu"), SHAPE),
     "one of 'relu', 'gelu'. Received: activation='silu'"),
    (lambda: built(DecoderBlock(**BLOCK), SHAPE), "must have cross-attention"),
    (lambda: built(Encoder([EncoderBlock(**BLOCK)], None, embedding_norm=True), SHAPE),
     "no norm of the embedding. Received: embedding_norm=True"),
])  # fmt: skip
def test_what_torch_does_not_have_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        to_torch(make())
