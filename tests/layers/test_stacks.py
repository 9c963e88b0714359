"""Encoder and decoder stacks: positions, norms, caches, and blocks that were there before."""

import functools

import keras
import numpy as np
import pytest

from keras_transformer.layers import (
    Decoder,
    DecoderBlock,
    Encoder,
    EncoderBlock,
    LearnedPositionEmbedding,
    RelativePosition,
    RotaryPosition,
    SinusoidalPositionEncoding,
    TiedEmbedding,
)
from tests.closeness import assert_close
from tests.layers.decoding import decode
from tests.layers.harness import reloaded
from tests.layers.oracle_parameters import array, randomize
from tests.layers.widest_float import WIDEST
from tests.oracle import transformer as oracle

RNG = np.random.default_rng(13)
INPUTS = RNG.normal(size=(2, 5, 8))
SOURCE = RNG.normal(size=(2, 7, 8))
PADDING = np.arange(5) < np.array([[5], [3]])
SOURCE_PADDING = np.arange(7) < np.array([[4], [7]])


def make(stack_class, block_class, norm="post", position="sinusoidal", dtype=WIDEST, **kwargs):
    if position == "learned":
        position = LearnedPositionEmbedding(9, dtype=dtype)
    blocks = [block_class(2, 12, norm=norm, dtype=dtype) for _ in range(2)]
    return stack_class(blocks, position=position, dtype=dtype, **kwargs)


encoder = functools.partial(make, Encoder, EncoderBlock)
decoder = functools.partial(make, Decoder, DecoderBlock)


def shared_stack():
    inputs = keras.Input((None, 8))
    first, second = EncoderBlock(2, 12), EncoderBlock(2, 12)
    return keras.Model(inputs, Encoder([first, second, first])(inputs))


def test_a_block_that_stands_twice_has_its_weights_once(tmp_path):
    model = shared_stack()
    assert len(model.weights) == 2 * 12
    expected = array(model(INPUTS))
    encoder_layer = model.layers[1]
    block = encoder_layer.blocks[0]
    first = Encoder([block, encoder_layer.blocks[1]])
    assert_close(expected, array(block(first(INPUTS))))
    clone = keras.models.clone_model(model)
    assert len(clone.weights) == len(model.weights)
    clone.set_weights(model.get_weights())
    np.testing.assert_array_equal(array(clone(INPUTS)), expected)
    model.save_weights(tmp_path / "model.weights.h5")
    again = reloaded(model, tmp_path)
    assert again.layers[1].blocks[0] is again.layers[1].blocks[2]
    np.testing.assert_array_equal(array(again(INPUTS)), expected)
    other = shared_stack()
    other.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_array_equal(array(other(INPUTS)), expected)


def test_pre_norm_adds_one_final_norm_and_post_norm_none():
    for make_stack in (encoder, decoder):
        for norm in ("post", "pre"):
            for final_norm in (None, True, False):
                stack = make_stack(norm, final_norm=final_norm)
                stack(INPUTS)
                has_norm = norm == "pre" if final_norm is None else final_norm
                assert len(stack.weights) == sum(len(block.weights) for block in stack.blocks) + (
                    2 if has_norm else 0
                )
                assert not has_norm or stack.norm_layer.epsilon == 1e-6


def test_own_positions_are_used():
    stack = encoder()
    shifted = array(stack(INPUTS, positions=np.arange(100, 105, dtype="int32")))
    with_zeros = encoder(position=None)
    with_zeros(INPUTS)
    with_zeros.set_weights(stack.get_weights())
    want = with_zeros(INPUTS + oracle.sinusoid(range(100, 105), 8))
    assert_close(shifted, array(want), dtype=WIDEST)


@pytest.mark.parametrize("position", [RotaryPosition(), RelativePosition(2)])
@pytest.mark.parametrize("stack_class, block_class", [
    (Encoder, EncoderBlock), (Decoder, DecoderBlock),
])  # fmt: skip
def test_blocks_with_positions_of_their_own_get_no_sinusoids(stack_class, block_class, position):
    def make_stack(position_of_stack, *positions):
        blocks = [block_class(2, 12, position=one) for one in positions]
        return stack_class(blocks, **position_of_stack)

    assert make_stack({}, None, position).position is None
    assert type(make_stack({}, None, None).position) is SinusoidalPositionEncoding
    explicit = make_stack({"position": "sinusoidal"}, position)
    for stack in (explicit, stack_class.from_config(explicit.get_config())):
        assert type(stack.position) is SinusoidalPositionEncoding
    assert stack_class.from_config(make_stack({}, position).get_config()).position is None


@pytest.mark.parametrize("position, max_length, stops, with_source", [
    ("sinusoidal", None, [1, 2, 3, 4, 5], True),
    ("sinusoidal", 5, [3, 5], True),
    ("sinusoidal", None, [3, 5], False),
    ("learned", 8, [1, 2, 3, 4, 5], False),
    ("learned", None, [3, 5], True),
])  # fmt: skip
def test_cached_decoder_equals_uncached(position, max_length, stops, with_source):
    stack = decoder(position=position)
    source = [SOURCE] * with_source
    masks = {"encoder_padding_mask": SOURCE_PADDING} if with_source else {}
    stack(INPUTS, *source)
    randomize(stack)
    cache = stack.make_cache(*source, batch_size=2, max_length=max_length)
    outputs, cache = decode(
        lambda new, cache, _: stack(new, cache=cache, **masks), INPUTS, cache, stops
    )
    assert int(cache.length) == 5
    want = array(stack(INPUTS, *source, **masks))
    assert_close(outputs, want, dtype=WIDEST)


@pytest.mark.parametrize("max_length", [None, 6])
@pytest.mark.parametrize("stops", [[2, 4], [1, 2, 3, 4]])
def test_a_keras_mask_of_new_tokens_does_not_break_the_cache(stops, max_length):
    """It covers the new positions only; what precedes padding comes out as without a cache."""
    embedding, stack = TiedEmbedding(10, 8, mask_zero=True), decoder(dtype="float32")
    ids = np.array([[1, 2, 3, 4], [3, 4, 5, 0]], "int32")
    want = array(stack(embedding(ids)))
    cache = stack.make_cache(batch_size=2, max_length=max_length)
    outputs, _ = decode(lambda new, cache, _: stack(embedding(new), cache=cache), ids, cache, stops)
    assert_close(outputs[ids != 0], want[ids != 0])


def test_blocks_that_were_built_before_keep_their_weights():
    """A block from elsewhere, or one position table for both stacks."""
    block, table = EncoderBlock(2, 12), LearnedPositionEmbedding(9)
    block(INPUTS), table(INPUTS)
    before = [*block.get_weights(), *table.get_weights()]
    stack = Encoder([block], position=table)
    stack(INPUTS)
    Decoder([DecoderBlock(2, 12)], position=table)(INPUTS)
    after = [*block.get_weights(), *table.get_weights()]
    assert all(map(np.array_equal, before, after))
    assert len(stack.weights) == 13


@pytest.mark.parametrize("remat", [False, True])
@pytest.mark.parametrize("stack_class, block", [(Encoder, EncoderBlock), (Decoder, DecoderBlock)])
def test_training_reaches_every_dropout_of_a_stateless_call(stack_class, block, remat):
    """`stateless_call` calls `call` alone, and sets no context."""
    stack = stack_class([block(2, 12, dropout=0.5, seed=1)], dropout=0.3, seed=2, remat=remat)
    inputs = INPUTS.astype("float32")
    stack.build(inputs.shape)
    weights = [variable.value for variable in stack.trainable_variables]
    states = [array(variable) for variable in stack.non_trainable_variables]
    outputs, new_states = stack.stateless_call(weights, states, inputs, training=True)
    assert_close(array(outputs), array(stack(inputs, training=True)))
    assert len(states) == 3
    for state, new, variable in zip(states, new_states, stack.non_trainable_variables, strict=True):
        assert np.any(array(new) != state)
        np.testing.assert_array_equal(array(new), array(variable))


class Halved(EncoderBlock):
    """A user's block, which does something else to the shape."""

    def call(self, inputs, **arguments):
        return super().call(inputs, **arguments)[:, ::2]


@pytest.mark.parametrize("layer", [Halved(2, 8), Encoder([EncoderBlock(2, 8), Halved(2, 8)])])
def test_what_a_user_overrides_is_asked_for_its_shape(layer):
    assert layer(keras.KerasTensor((3, 6, 4))).shape == (3, 3, 4)
    assert layer(keras.random.normal((3, 6, 4))).shape == (3, 3, 4)


def test_dropout_falls_on_the_sum_of_embedding_and_position_while_training():
    stack = Encoder([EncoderBlock(2, 12, dropout=0.0)], dropout=0.9, seed=1)
    ones = np.ones((1, 5, 8), "float32")
    quiet = array(stack(ones))
    assert not np.allclose(array(stack(ones, training=True)), quiet)
    np.testing.assert_array_equal(array(stack(ones, training=False)), quiet)
