"""The oracle's gradients are those of the oracle: central differences in float64 agree.

Each leaf of the parameters, and each input, is moved along a random direction of its own; a wrong
entry of the gradient anywhere in it changes the slope along that direction.
"""

import numpy as np
import pytest

from tests.oracle import backward
from tests.oracle import transformer as forward
from tests.oracle.random_parameters import RandomParameters, leaves

STEP = 1e-5


def assert_is_the_gradient(function, arrays, gradients):
    """`function()` reads the arrays of `arrays`; both arguments are trees of the same form."""
    rng = np.random.default_rng(7)
    assert [path for path, _ in leaves(arrays)] == [path for path, _ in leaves(gradients)]
    for (path, array), (_, gradient) in zip(leaves(arrays), leaves(gradients), strict=True):
        assert gradient.shape == array.shape, path
        direction, start = rng.normal(size=array.shape), array.copy()
        slopes = []
        for step in (STEP, -STEP):
            array[...] = start + step * direction
            slopes.append(function() / (2 * STEP))
        array[...] = start
        slope = slopes[0] - slopes[1]
        np.testing.assert_allclose((gradient * direction).sum(), slope, rtol=1e-6, atol=1e-7)


@pytest.fixture
def rng():
    return np.random.default_rng(3)


@pytest.mark.parametrize("masked", [False, True])
def test_multi_head_attention(rng, masked):
    params = RandomParameters().attention()
    query, value, key = rng.normal(size=(4, 6)), rng.normal(size=(5, 6)), rng.normal(size=(5, 6))
    mask = None
    if masked:
        mask = rng.random((4, 5)) < 0.6
        mask[1] = False
    upstream = rng.normal(size=(4, 6))

    def loss():
        outputs, _ = forward.multi_head_attention(params, 2, query, value, key, mask)
        return (outputs * upstream).sum()

    gradients = backward.multi_head_attention_backward(params, 2, query, value, key, mask, upstream)
    assert_is_the_gradient(loss, [params, query, value, key], gradients)
    if masked:
        assert not gradients[1][1].any()


def test_feed_forward_and_layer_norm(rng):
    random = RandomParameters()
    inputs, upstream = rng.normal(size=(5, 6)), rng.normal(size=(5, 6))
    for params, function, gradient in (
        (random.feed_forward(), forward.feed_forward, backward.feed_forward_backward),
        (random.layer_norm(), forward.layer_norm, backward.layer_norm_backward),
    ):
        assert_is_the_gradient(
            lambda function=function, params=params: (function(params, inputs) * upstream).sum(),
            [params, inputs],
            gradient(params, inputs, upstream),
        )


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_blocks(rng, norm):
    random = RandomParameters()
    inputs, memory = rng.normal(size=(5, 6)), rng.normal(size=(4, 6))
    upstream = rng.normal(size=(5, 6))
    mask, cross_mask = rng.random((5, 5)) < 0.7, rng.random((5, 4)) < 0.7
    padding, memory_padding = np.arange(5) < 4, np.arange(4) < 3
    params = random.block("attention")
    arguments = {"padding_mask": padding, "mask": mask, "norm": norm}
    assert_is_the_gradient(
        lambda: (forward.encoder_block(params, 2, inputs, **arguments) * upstream).sum(),
        [params, inputs],
        backward.encoder_block_backward(params, 2, inputs, upstream, **arguments),
    )
    arguments |= {"memory": memory, "memory_mask": memory_padding, "cross_mask": cross_mask}
    other = random.block("self_attention", "cross_attention")
    assert_is_the_gradient(
        lambda: (forward.decoder_block(other, 2, inputs, **arguments) * upstream).sum(),
        [other, inputs, memory],
        backward.decoder_block_backward(other, 2, inputs, upstream, **arguments),
    )
    alone = random.block("self_attention")
    *gradients, d_memory = backward.decoder_block_backward(alone, 2, inputs, upstream, norm=norm)
    assert d_memory is None
    assert_is_the_gradient(
        lambda: (forward.decoder_block(alone, 2, inputs, norm=norm) * upstream).sum(),
        [alone, inputs],
        gradients,
    )


@pytest.mark.parametrize("norm,positions", [("post", None), ("pre", 7)])
def test_whole_model(rng, norm, positions):
    params = RandomParameters(norm=norm, positions=positions).transformer(9, 8)
    source, target = [5, 8, 5, 3, 0], [2, 4, 7, 0]
    upstream = rng.normal(size=(4, 8))
    gradients = backward.transformer_backward(params, 2, source, target, upstream, norm)
    assert_is_the_gradient(
        lambda: (forward.transformer(params, 2, source, target, norm) * upstream).sum(),
        params,
        gradients,
    )
    assert not gradients["source"][[0, 1, 2]].any()  # Ids that do not occur, and padding.
