"""Encoder and decoder blocks: the oracle's, post- and pre-norm, masked, cached, seeded."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers import Decoder, DecoderBlock, EncoderBlock
from tests.layers.oracle_parameters import array, randomize
from tests.layers.widest_float import FLOAT64, WIDEST, within

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


def test_a_post_norm_block_ends_in_a_norm_and_a_pre_norm_block_does_not():
    means = {}
    for norm in ("post", "pre"):
        outputs = array(EncoderBlock(**SIZES, norm=norm, dropout=0.0)(INPUTS.astype("float32")))
        means[norm] = np.abs(outputs.mean(-1)).max()
    assert means["post"] < 1e-6 < 1e-2 < means["pre"]


def test_layer_norms_use_the_papers_epsilon():
    block = built(EncoderBlock(**SIZES), INPUTS.astype("float32"))
    assert block.attention_norm.epsilon == block.feed_forward_norm.epsilon == 1e-6


@pytest.mark.parametrize("max_length", [None, 9])
@pytest.mark.parametrize(
    "norm,width,cuts",
    [("post", 3, [1, 2, 3, 4, 5]), ("post", 1, [2, 5]), ("pre", 3, [2, 5])],
)
def test_cached_decoder_block_equals_uncached(max_length, cuts, width, norm):
    block = built(DecoderBlock(**SIZES, norm=norm, dtype=WIDEST), INPUTS, SOURCE)
    inputs = RNG.normal(size=(2 * width, 5, 8))
    want = block(
        inputs,
        np.repeat(SOURCE, width, axis=0),
        encoder_padding_mask=np.repeat(SOURCE_PADDING, width, axis=0),
    )
    cache = block.make_cache(SOURCE, batch_size=2 * width, max_length=max_length)
    outputs, start = [], 0
    for cut in cuts:
        result, cache = block(
            inputs[:, start:cut], encoder_padding_mask=SOURCE_PADDING, cache=cache
        )
        outputs.append(array(result))
        start = cut
    np.testing.assert_allclose(np.concatenate(outputs, axis=1), array(want), atol=within(1e-12))


@pytest.mark.parametrize("policy", [FLOAT64, "float32", "mixed_bfloat16", "mixed_float16"])
def test_caches_have_the_compute_dtype_and_keep_it(policy):
    """A loop needs the same dtypes after a step, and half precision halves the cache."""
    block = DecoderBlock(**SIZES, dtype=policy)
    inputs, source = INPUTS.astype("float32"), SOURCE.astype("float32")
    block(inputs, source)
    cache = block.make_cache(source, batch_size=2)
    _, after = block(inputs, cache=cache)
    for one in (cache, after):
        for tensor in keras.tree.flatten(one):
            assert keras.backend.standardize_dtype(tensor.dtype) == block.compute_dtype


def dropouts(block):
    """Every dropout of a block, by its path."""
    return {
        layer.path: layer for layer in block._flatten_layers() if type(layer).__name__ == "Dropout"
    }


@pytest.mark.parametrize("seed", [0, 3, 2**32 - 1, None])
def test_no_two_dropouts_of_a_block_draw_the_same_mask(seed):
    def masks():
        block = DecoderBlock(
            **SIZES,
            dropout=0.5,
            attention_dropout=0.5,
            activation_dropout=0.5,
            seed=seed,
            name="block",
        )
        block(INPUTS.astype("float32"), SOURCE.astype("float32"))
        ones = np.ones((1, 64), "float32")
        return [array(layer(ones, training=True)) for layer in dropouts(block).values()]

    first = masks()
    assert len(first) == 6
    for i in range(6):
        for j in range(i):
            assert not np.array_equal(first[i], first[j])
    assert (seed is None) != all(map(np.array_equal, first, masks()))


def test_a_seeded_initializer_gives_every_matrix_its_own_numbers():
    initializer = keras.initializers.RandomNormal(seed=5)
    block = DecoderBlock(2, 8, kernel_initializer=initializer)
    block(INPUTS.astype("float32"), INPUTS.astype("float32"))
    matrices = [array(weight) for weight in block.weights if len(weight.shape) == 2]
    assert len(matrices) == 10
    assert len({matrix.tobytes() for matrix in matrices}) == 10


def test_regularizers_reach_every_matrix():
    block = DecoderBlock(**SIZES, kernel_regularizer=keras.regularizers.L2(1.0))
    block(INPUTS.astype("float32"), SOURCE.astype("float32"))
    want = [np.sum(array(weight) ** 2) for weight in block.weights if len(weight.shape) == 2]
    got = [array(loss) for loss in block.losses]
    np.testing.assert_allclose(sorted(got), sorted(want), rtol=1e-5)


@pytest.mark.parametrize("block_class", [EncoderBlock, DecoderBlock])
def test_heads_that_do_not_divide_the_width_are_refused(block_class):
    with pytest.raises(
        ValueError, match="`num_heads` must divide .*Received: num_heads=3, width 8"
    ):
        block_class(3, 12)(INPUTS)
    assert block_class(3, 12, key_dim=2, value_dim=2)(INPUTS).shape == (2, 5, 8)


@pytest.mark.parametrize(
    "name,shape",
    [
        ("padding_mask", (2, 1, 5)),
        ("padding_mask", (5,)),
        ("attention_mask", (2, 5)),
        ("attention_mask", (2, 2, 5, 5)),
    ],
)
@pytest.mark.parametrize("block_class", [EncoderBlock, DecoderBlock])
def test_masks_of_another_rank_are_refused(block_class, name, shape):
    with pytest.raises(ValueError, match=f"`{name}` must have the shape"):
        block_class(**SIZES)(INPUTS, **{name: np.ones(shape, bool)})


def test_bad_decoder_calls_are_explained():
    block = DecoderBlock(**SIZES)
    with pytest.raises(ValueError, match="not built"):
        block.make_cache(SOURCE, batch_size=2)
    block(INPUTS, SOURCE)
    with pytest.raises(ValueError, match="needs `encoder_outputs` or a cache"):
        block(INPUTS)
    with pytest.raises(ValueError, match="must be the encoder's outputs, .* has cross-attention"):
        block.make_cache(batch_size=2)
    cache = block.make_cache(SOURCE, batch_size=2)
    with pytest.raises(ValueError, match="scores or a cache, not both"):
        block(INPUTS, cache=cache, return_attention_scores=True)
    decoder = Decoder([block])
    decoder(INPUTS, SOURCE)
    with pytest.raises(ValueError, match="scores or a cache, not both"):
        decoder(INPUTS, cache=decoder.make_cache(SOURCE, 2), return_attention_scores=True)
    with pytest.raises(TypeError, match="source_mask"):
        block(INPUTS, SOURCE, source_mask=SOURCE_PADDING)
    alone = DecoderBlock(**SIZES)
    alone(INPUTS)
    with pytest.raises(ValueError, match="has no cross-attention"):
        alone(INPUTS, SOURCE)


@pytest.mark.parametrize(
    "policy,norm",
    [
        pytest.param(WIDEST, "post", marks=pytest.mark.slow),
        ("float32", "pre"),
        pytest.param("mixed_bfloat16", "post", marks=pytest.mark.slow),
        ("mixed_float16", "post"),
        pytest.param("mixed_float16", "pre", marks=pytest.mark.slow),
    ],
)
def test_a_batch_of_nothing_but_padding_is_finite_and_trains(policy, norm):
    block = DecoderBlock(**SIZES, norm=norm, dtype=policy)
    inputs, source = keras.Input((5, 8)), keras.Input((7, 6))
    target_mask, source_mask = ops.all(inputs != 0, -1), ops.all(source != 0, -1)
    outputs = block(inputs, source, padding_mask=target_mask, encoder_padding_mask=source_mask)
    model = keras.Model([inputs, source], outputs)
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=False)
    data = [np.zeros((2, 5, 8), "float32"), np.zeros((2, 7, 6), "float32")]
    assert np.isfinite(array(model(data))).all()
    assert np.isfinite(model.train_on_batch(data, np.ones((2, 5, 8), "float32")))
    assert all(np.isfinite(weight).all() for weight in block.get_weights())
