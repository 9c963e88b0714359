"""Encoder and decoder blocks: the oracle's, post- and pre-norm, masked, cached, seeded."""

import keras
import numpy as np
import pytest

from keras_transformer.layers import Decoder, DecoderBlock, Dropout, EncoderBlock
from tests.closeness import assert_close
from tests.layers.decoding import decode
from tests.layers.oracle_parameters import array, randomize
from tests.layers.widest_float import FLOAT64, WIDEST

RNG = np.random.default_rng(11)
INPUTS = RNG.normal(size=(2, 5, 8))
SOURCE = RNG.normal(size=(2, 7, 6))
PADDING = np.arange(5) < np.array([[5], [3]])
SOURCE_PADDING = np.arange(7) < np.array([[4], [7]])
SIZES = {"num_heads": 2, "intermediate_dim": 12}


def built(block, *inputs):
    block(*inputs)
    randomize(block)
    return block


@pytest.mark.parametrize("max_length", [None, 9])
@pytest.mark.parametrize("norm, width, stops", [
    ("post", 3, [1, 2, 3, 4, 5]), ("post", 1, [2, 5]), ("pre", 3, [2, 5]),
])  # fmt: skip
def test_cached_decoder_block_equals_uncached(max_length, stops, width, norm):
    block = built(DecoderBlock(**SIZES, norm=norm, dtype=WIDEST), INPUTS, SOURCE)
    inputs = RNG.normal(size=(2 * width, 5, 8))
    source, padding = (np.repeat(one, width, axis=0) for one in (SOURCE, SOURCE_PADDING))
    want = block(inputs, source, encoder_padding_mask=padding)
    outputs, _ = decode(
        lambda new, cache, _: block(new, encoder_padding_mask=SOURCE_PADDING, cache=cache),
        inputs,
        block.make_cache(SOURCE, batch_size=2 * width, max_length=max_length),
        stops,
    )
    assert_close(outputs, array(want), dtype=WIDEST)


@pytest.mark.parametrize("policy", [FLOAT64, "float32", "mixed_bfloat16", "mixed_float16"])
def test_caches_have_the_compute_dtype_and_keep_it(policy):
    """A loop needs the same dtypes after a step, and half precision halves the cache."""
    block = DecoderBlock(**SIZES, dtype=policy)
    inputs, source = INPUTS.astype("float32"), SOURCE.astype("float32")
    block(inputs, source)
    cache = block.make_cache(source, batch_size=2)
    _, after = block(inputs, cache=cache)
    for tensor in keras.tree.flatten((cache, after)):
        assert keras.backend.standardize_dtype(tensor.dtype) == block.compute_dtype


@pytest.mark.parametrize("seed", [0, 3, 2**32 - 1, None])
def test_no_two_dropouts_of_a_block_draw_the_same_mask(seed):
    rates = {"dropout": 0.5, "attention_dropout": 0.5, "activation_dropout": 0.5}

    def masks():
        block = DecoderBlock(**SIZES, **rates, seed=seed, name="block")
        block(INPUTS.astype("float32"), SOURCE.astype("float32"))
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
    lambda: keras.initializers.GlorotUniform(),
    lambda: "random_normal",
])  # fmt: skip
def test_no_two_weights_begin_with_the_same_numbers(initializer):
    """Not even with a seed and equal shapes."""
    options = {"kernel_initializer": initializer(), "bias_initializer": "random_normal"}
    block = DecoderBlock(2, 8, use_bias=True, **options)
    block(INPUTS.astype("float32"), INPUTS.astype("float32"))
    weights = [weight for weight in block.weights if weight.name in ("kernel", "bias")]
    assert len(weights) == len({array(weight).tobytes() for weight in weights}) == 20


@pytest.mark.parametrize("block_class", [EncoderBlock, DecoderBlock])
def test_heads_that_do_not_divide_the_width_are_refused(block_class):
    message = "`num_heads` must divide .*Received: num_heads=3, width 8"
    with pytest.raises(ValueError, match=message):
        block_class(3, 12)(INPUTS)
    assert block_class(3, 12, key_dim=2, value_dim=2)(INPUTS).shape == (2, 5, 8)


def test_bad_decoder_calls_are_explained():
    block, alone = DecoderBlock(**SIZES), DecoderBlock(**SIZES)
    with pytest.raises(ValueError, match="not built"):
        block.make_cache(SOURCE, batch_size=2)
    decoder = Decoder([block])
    decoder(INPUTS, SOURCE)
    alone(INPUTS)
    cache, scores = block.make_cache(SOURCE, batch_size=2), {"return_attention_scores": True}
    of_decoder = {"cache": decoder.make_cache(SOURCE, 2), **scores}
    for call, message in (
        (lambda: block(INPUTS), "needs `encoder_outputs` or a cache"),
        (lambda: block.make_cache(batch_size=2), "the encoder's outputs, .* has cross-attention"),
        (lambda: block(INPUTS, cache=cache, **scores), "scores or a cache, not both"),
        (lambda: decoder(INPUTS, **of_decoder), "scores or a cache, not both"),
        (lambda: alone(INPUTS, SOURCE), "has no cross-attention"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    with pytest.raises(TypeError, match="source_mask"):
        block(INPUTS, SOURCE, source_mask=SOURCE_PADDING)


def test_a_post_norm_block_ends_in_a_norm_and_a_pre_norm_block_does_not():
    means = {}
    for norm in ("post", "pre"):
        outputs = array(EncoderBlock(**SIZES, norm=norm, dropout=0.0)(INPUTS.astype("float32")))
        means[norm] = np.abs(outputs.mean(-1)).max()
    assert_close(means["post"], 0.0, scale=1.0)
    assert means["pre"] > 1e-2


def test_layer_norms_use_the_papers_epsilon():
    block = built(EncoderBlock(**SIZES), INPUTS.astype("float32"))
    assert block.attention_norm.epsilon == block.feed_forward_norm.epsilon == 1e-6
