"""Queries that may attend to nothing get exact zeros, and pass exact zeros back."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers import EncoderBlock, ScaledDotProductAttention
from tests.closeness import assert_close
from tests.layers.oracle_parameters import randomize
from tests.precision.gradients import array, value_and_gradients
from tests.precision.measurements import compute_dtype, policies

RNG = np.random.default_rng(23)
# The first sentence has one dead row, the second none that is alive.
MASK = RNG.random((2, 5, 6)) < 0.6
MASK[0, :, 0] = True
MASK[0, 2] = False
MASK[1] = False


def variables(policy, *shapes):
    return [keras.Variable(RNG.normal(size=shape), dtype=compute_dtype(policy)) for shape in shapes]


@pytest.mark.parametrize("policy", policies())
def test_attention(policy):
    layer = ScaledDotProductAttention(dtype=policy)
    inputs = variables(policy, (2, 2, 5, 4), (2, 2, 6, 4), (2, 2, 6, 3))

    def outputs(**kwargs):
        return layer(*[ops.copy(one) for one in inputs], attention_mask=MASK, **kwargs)

    result, scores = (array(one) for one in outputs(return_attention_scores=True))
    # A fused kernel rounds elsewhere.
    assert_close(result, array(outputs()), policy, sum_length=4)
    for one in (result, scores):
        assert not one[0, :, 2].any() and not one[1].any()
        assert one[0, :, 0].any()
    _, gradients = value_and_gradients(lambda: ops.sum(ops.square(outputs() + 1)), inputs)
    for gradient in gradients:
        assert np.isfinite(gradient).all()
        assert gradient[0].any() and not gradient[1].any()
    assert not gradients[0][0, :, 2].any()


@pytest.mark.parametrize(
    ("norm", "policy"),
    [
        pytest.param(
            norm,
            policy,
            marks=()
            if (norm, policy) in [("post", "float32"), ("pre", "mixed_float16")]
            else pytest.mark.slow,
        )
        for norm in ("post", "pre")
        for policy in policies()
    ],
)
def test_a_block_on_a_sentence_of_padding(norm, policy):
    """Its attention gives nothing; the block is what is left, and trains without NaN."""
    block = EncoderBlock(2, 12, dropout=0.0, norm=norm, dtype=policy)
    (inputs,) = variables(policy, (2, 5, 8))
    block.build(inputs.shape)
    randomize(block)
    padding = np.array([[True] * 5, [False] * 5])

    def outputs():
        return block(ops.copy(inputs), padding_mask=padding)

    _, gradients = value_and_gradients(
        lambda: ops.sum(ops.square(outputs())), [inputs, *block.trainable_variables]
    )
    assert all(np.isfinite(gradient).all() for gradient in gradients)
    before = array(outputs())
    block.attention.output_dense.kernel.assign(np.zeros((8, 8)))
    np.testing.assert_array_equal(array(outputs())[1], before[1])
    assert not np.array_equal(array(outputs())[0], before[0])
