"""Blocks and stacks: norms, positions, seeds, caches, shared blocks, recomputation."""

import keras
import numpy as np
import pytest

from keras_transformer import Transformer
from keras_transformer.layers import (
    AdditiveAttention,
    Decoder,
    DecoderBlock,
    Dropout,
    Encoder,
    EncoderBlock,
    LearnedPositionEmbedding,
    MultiHeadAttention,
    RelativePosition,
    RotaryPosition,
    SinusoidalPositionEncoding,
    TiedEmbedding,
)
from tests.closeness import assert_all_close, assert_close
from tests.layers.harness import WIDEST, decode, reloaded
from tests.layers.oracle_parameters import array, randomize
from tests.training.uncompiled import RUN_EAGERLY

RNG = np.random.default_rng(13)
INPUTS = RNG.normal(size=(2, 5, 8)).astype("float32")
SOURCE = RNG.normal(size=(2, 7, 8)).astype("float32")
SOURCE_PADDING = np.arange(7) < np.array([[4], [7]])
STACKS = [(Encoder, EncoderBlock), (Decoder, DecoderBlock)]


def decoder(position="sinusoidal", dtype=WIDEST):
    if position == "learned":
        position = LearnedPositionEmbedding(9, dtype=dtype)
    blocks = [DecoderBlock(2, 12, norm="pre", dtype=dtype) for _ in range(2)]
    return Decoder(blocks, position=position, dtype=dtype)


@pytest.mark.parametrize("seed", [2**32 - 1, None])
def test_no_two_dropouts_of_a_block_draw_the_same_mask(seed):
    rates = {"dropout": 0.5, "attention_dropout": 0.5, "activation_dropout": 0.5}

    def masks():
        block = DecoderBlock(2, 12, **rates, seed=seed, name="block")
        block(INPUTS, SOURCE)
        dropouts = {
            layer.path: layer for layer in block._flatten_layers() if isinstance(layer, Dropout)
        }
        ones = np.ones((1, 64), "float32")
        return [array(layer(ones, training=True)) for layer in dropouts.values()]

    first, second = masks(), masks()
    assert len(first) == len({mask.tobytes() for mask in first}) == 6
    assert (seed is None) != all(map(np.array_equal, first, second))


@pytest.mark.parametrize("initializer", [
    lambda: keras.initializers.GlorotUniform(seed=5),
    lambda: keras.initializers.GlorotUniform(keras.random.SeedGenerator(5)),
    lambda: "random_normal",
])  # fmt: skip
def test_no_two_weights_begin_with_the_same_numbers(initializer):
    """Not even with a seed and equal shapes."""
    options = {"kernel_initializer": initializer(), "bias_initializer": "random_normal"}
    block = DecoderBlock(2, 8, use_bias=True, **options)
    block(INPUTS, INPUTS)
    weights = [weight for weight in block.weights if weight.name in ("kernel", "bias")]
    assert len(weights) == len({array(weight).tobytes() for weight in weights}) == 20


@pytest.mark.parametrize("stack_class, block_class", STACKS)
@pytest.mark.parametrize("norm, final_norm, has_norm", [
    ("post", None, False), ("pre", None, True), ("post", True, True), ("pre", False, False),
])  # fmt: skip
def test_pre_norm_adds_one_final_norm(stack_class, block_class, norm, final_norm, has_norm):
    stack = stack_class([block_class(2, 12, norm=norm)] * 2, final_norm=final_norm)
    stack(INPUTS)
    assert len(stack.weights) == 12 + 2 * has_norm
    assert not has_norm or stack.norm_layer.epsilon == 1e-6


@pytest.mark.parametrize("stack_class, block_class", STACKS)
def test_stacks_return_the_weights_of_each_block(stack_class, block_class):
    stack, is_decoder = stack_class([block_class(2, 12) for _ in "ab"]), stack_class is Decoder
    inputs = [INPUTS, SOURCE][: 1 + is_decoder]
    outputs, weights = stack(*inputs, return_attention_scores=True)
    assert_close(array(outputs), array(stack(*inputs)))
    shapes = keras.tree.map_structure(lambda one: tuple(one.shape), weights)
    of_self, of_source = (2, 2, 5, 5), (2, 2, 5, 7)
    assert shapes == [{"self": of_self, "cross": of_source} if is_decoder else of_self] * 2


@pytest.mark.parametrize("stack_class, block_class", STACKS)
def test_blocks_with_positions_of_their_own_get_no_sinusoids(stack_class, block_class):
    own, plain = block_class(2, 12, position=RotaryPosition()), block_class(2, 12)
    none, explicit = stack_class([plain, own]), stack_class([own], position="sinusoidal")
    for stack in (none, stack_class.from_config(none.get_config())):
        assert stack.position is None
    for stack in (explicit, stack_class.from_config(explicit.get_config()), stack_class([plain])):
        assert type(stack.position) is SinusoidalPositionEncoding


@pytest.mark.parametrize("position, max_length, stops, width", [
    ("sinusoidal", None, [1, 2, 3, 4, 5], 2), ("sinusoidal", 5, [3, 5], 1),
    ("learned", 8, [1, 2, 3, 4, 5], 0), ("learned", None, [3, 5], 1),
])  # fmt: skip
def test_cached_decoder_equals_uncached(position, max_length, stops, width):
    """With `width` hypotheses of a sentence, or without an encoder."""
    stack, rows = decoder(position), 2 * max(width, 1)
    inputs, source = RNG.normal(size=(rows, 5, 8)), [SOURCE] * (width > 0)
    masks = {"encoder_padding_mask": SOURCE_PADDING} if width else {}
    stack(INPUTS, *source)
    randomize(stack)
    cache = stack.make_cache(*source, batch_size=rows, max_length=max_length)
    outputs, cache = decode(
        lambda new, cache, _: stack(new, cache=cache, **masks), inputs, cache, stops
    )
    assert int(cache.length) == 5
    source, masks = (
        [np.repeat(one, width, axis=0) for one in some] for some in (source, masks.values())
    )
    want = stack(inputs, *source, None, *masks) if width else stack(inputs)
    assert_close(outputs, array(want), dtype=WIDEST)


@pytest.mark.parametrize("max_length, stops", [(None, [2, 4]), (6, [1, 2, 3, 4])])
def test_a_keras_mask_of_new_tokens_does_not_break_the_cache(stops, max_length):
    """It covers the new positions only; what precedes padding comes out as without a cache."""
    embedding, stack = TiedEmbedding(10, 8, mask_zero=True), decoder(dtype="float32")
    ids = np.array([[1, 2, 3, 4], [3, 4, 5, 0]], "int32")
    want = array(stack(embedding(ids)))
    cache = stack.make_cache(batch_size=2, max_length=max_length)
    outputs, _ = decode(lambda new, cache, _: stack(embedding(new), cache=cache), ids, cache, stops)
    assert_close(outputs[ids != 0], want[ids != 0])


@pytest.mark.parametrize("max_length", [None, 6])
def test_a_mask_beside_a_cache_has_all_positions(max_length):
    stack, mask = decoder(), np.array([[False, True, True], [True, True, True]])
    want = array(stack(INPUTS[:, :3], padding_mask=mask))
    cache = stack.make_cache(batch_size=2, max_length=max_length)
    _, cache = stack(INPUTS[:, :2], padding_mask=_widened(mask[:, :2], max_length), cache=cache)
    found, _ = stack(INPUTS[:, 2:3], padding_mask=_widened(mask, max_length), cache=cache)
    assert_close(array(found), want[:, 2:], dtype=WIDEST)
    with pytest.raises(ValueError, match="`attention_mask` must have the shape"):
        stack(INPUTS[:, 2:3], padding_mask=mask[:, 2:], cache=cache)


def _widened(mask, max_length):
    return mask if max_length is None else np.pad(mask, [[0, 0], [0, max_length - mask.shape[1]]])


def test_explicit_and_implicit_masks_are_combined():
    embedding, encoder = TiedEmbedding(10, 8, mask_zero=True), Encoder([EncoderBlock(2, 12)])
    ids = np.array([[5, 9, 3, 0, 0], [7, 8, 3, 0, 0]], "int32")
    outputs = encoder(embedding(ids), padding_mask=np.tile(np.arange(5) != 2, (2, 1)))
    assert_close(array(outputs)[:, :2], array(encoder(embedding(ids[:, :2]))))


def test_a_block_that_stands_twice_has_its_weights_once(tmp_path):
    def make():
        inputs = keras.Input((None, 8))
        first, second = EncoderBlock(2, 12), EncoderBlock(2, 12)
        return keras.Model(inputs, Encoder([first, second, first])(inputs))

    model, other = make(), make()
    assert len(model.weights) == 2 * 12
    expected = array(model(INPUTS))
    block, second, _ = model.layers[1].blocks
    assert_close(expected, array(block(Encoder([block, second])(INPUTS))))
    model.save_weights(tmp_path / "model.weights.h5")
    other.load_weights(tmp_path / "model.weights.h5")
    again = reloaded(model, tmp_path)
    assert again.layers[1].blocks[0] is again.layers[1].blocks[2]
    for one in (other, again):
        np.testing.assert_array_equal(array(one(INPUTS)), expected)


def test_a_position_of_several_blocks_has_its_weights_once(tmp_path):
    position = RelativePosition(3)
    inputs = keras.Input((None, 8))
    encoder = Encoder([EncoderBlock(2, 8, position=position) for _ in range(3)])
    model = keras.Model(inputs, encoder(inputs))
    randomize(model)
    model.save(tmp_path / "m.keras")
    x = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")
    copies = keras.models.clone_model(model), keras.saving.load_model(tmp_path / "m.keras")
    copies[0].set_weights(model.get_weights())
    for copy in copies:
        first, *others = [block.position for block in copy.layers[-1].blocks]
        assert all(other is first for other in others)
        assert len(copy.weights) == len(model.weights)
        assert_close(array(copy(x)), array(model(x)))


def test_what_a_frozen_block_is_given_is_frozen():
    block = EncoderBlock(2, 16, position=RelativePosition(2), trainable=False)
    attention = MultiHeadAttention(2, 4, attention=AdditiveAttention(), trainable=False)
    states = np.ones((1, 3, 8), "float32")
    block(states), attention(states, states)
    assert not block.trainable_weights and not attention.trainable_weights
    assert block.position.weights and attention.attention.weights


def test_a_cache_has_the_batch_of_the_encoder_unless_it_is_given():
    decoder, states = Decoder([DecoderBlock(2, 8)]), np.ones((3, 4, 8), "float32")
    whole = decoder(states, states)
    step, _ = decoder(states, cache=decoder.make_cache(states))
    assert_close(array(step), array(whole))
    language = Decoder([DecoderBlock(2, 8)])
    language(states)
    with pytest.raises(ValueError, match="needs `batch_size`"):
        language.make_cache()


def test_blocks_that_were_built_before_keep_their_weights():
    """A block from elsewhere, or one position table for both stacks."""
    block, table = EncoderBlock(2, 12), LearnedPositionEmbedding(9)
    block(INPUTS), table(INPUTS)
    before = [*block.get_weights(), *table.get_weights()]
    Encoder([block], position=table)(INPUTS)
    Decoder([DecoderBlock(2, 12)], position=table)(INPUTS)
    after = [*block.get_weights(), *table.get_weights()]
    assert all(map(np.array_equal, before, after))


@pytest.mark.parametrize("remat", [False, True])
@pytest.mark.parametrize("stack_class, block", STACKS)
def test_training_reaches_every_dropout_of_a_stateless_call(stack_class, block, remat):
    """`stateless_call` calls `call` alone, and sets no context."""
    stack = stack_class([block(2, 12, dropout=0.5, seed=1)], dropout=0.3, seed=2, remat=remat)
    stack.build(INPUTS.shape)
    weights = [variable.value for variable in stack.trainable_variables]
    states = [array(variable) for variable in stack.non_trainable_variables]
    outputs, new_states = stack.stateless_call(weights, states, INPUTS, training=True)
    assert_close(array(outputs), array(stack(INPUTS, training=True)))
    assert not np.allclose(array(outputs), array(stack(INPUTS)))
    assert len(states) == 3
    for state, new, variable in zip(states, new_states, stack.non_trainable_variables, strict=True):
        assert np.any(array(new) != state)
        np.testing.assert_array_equal(array(new), array(variable))


def test_recomputed_blocks_train_alike():
    """Dropout included."""
    ids = {name: RNG.integers(1, 20, (4, 7)).astype("int32") for name in ("source", "target")}

    def trained(remat):
        keras.utils.set_random_seed(4)
        sizes = {"num_encoder_layers": 1, "num_decoder_layers": 1, "attention_dropout": 0.2}
        model = Transformer.from_preset("tiny", vocab_size=20, dropout=0.4, remat=remat, **sizes)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        # Recomputation is compiled, and compared with steps that are not.
        how = {"run_eagerly": RUN_EAGERLY and not remat}
        model.compile(keras.optimizers.SGD(0.5), loss, **how)
        model.fit(ids, ids["source"], batch_size=2, shuffle=False, verbose=0)
        return [array(weight) for weight in model.weights]

    assert_all_close(trained(True), trained(False))


class Halved(EncoderBlock):
    """A user's block, which does something else to the shape."""

    def call(self, inputs, **arguments):
        return super().call(inputs, **arguments)[:, ::2]


@pytest.mark.parametrize("layer", [Halved(2, 8), Encoder([EncoderBlock(2, 8), Halved(2, 8)])])
def test_what_a_user_overrides_is_asked_for_its_shape(layer):
    assert layer(keras.KerasTensor((3, 6, 4))).shape == (3, 3, 4)
    assert layer(keras.random.normal((3, 6, 4))).shape == (3, 3, 4)


def test_bad_decoder_calls_are_explained():
    block, alone = DecoderBlock(2, 12), DecoderBlock(2, 12)
    with pytest.raises(ValueError, match="not built"):
        block.make_cache(SOURCE, batch_size=2)
    block(INPUTS, SOURCE), alone(INPUTS)
    cache, scores = block.make_cache(SOURCE, batch_size=2), {"return_attention_scores": True}
    for call, message in (
        (lambda: block(INPUTS), "needs `encoder_outputs` or a cache"),
        (lambda: block.make_cache(batch_size=2), "the encoder's outputs, .* has cross-attention"),
        (lambda: block(INPUTS, cache=cache, **scores), "scores or a cache, not both"),
        (lambda: alone(INPUTS, SOURCE), "has no cross-attention"),
        (lambda: EncoderBlock(3, 12)(INPUTS), "`num_heads` must divide .*num_heads=3, width 8"),
        (lambda: Encoder([alone]), "encoder blocks in an `Encoder`.*Received: blocks="),
        (lambda: Decoder([EncoderBlock(2, 12)]), "encoder blocks in an `Encoder`.*blocks="),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    assert EncoderBlock(3, 12, key_dim=2, value_dim=2)(INPUTS).shape == (2, 5, 8)
