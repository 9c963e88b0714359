"""The oracle's slopes are those of central differences, and its gradients have these slopes."""

import numpy as np
import pytest

from keras_transformer.models import Transformer, TransformerConfig
from tests.closeness import assert_close
from tests.layers.oracle_parameters import randomize, transformer_parameters
from tests.oracle import loss, transformer
from tests.oracle.slopes import directions, leaves, slopes, slopes_of_gradient

RNG = np.random.default_rng(3)
STEP = 1e-5


def central_differences(function, tree):
    result = []
    for (_, leaf), direction in zip(leaves(tree), directions(tree), strict=True):
        start, values = leaf.copy(), []
        for step in (STEP, -STEP):
            leaf[...] = start + step * direction
            values.append(function(tree))
        leaf[...] = start
        result.append((values[0] - values[1]) / (2 * STEP))
    return result


@pytest.mark.parametrize("options", [{}, {"norm": "pre", "position": "learned", "max_length": 7}])
def test_whole_model(options):
    sizes = {"d_model": 6, "intermediate_dim": 7, "num_heads": 2, "use_bias": True}
    layers = {"num_encoder_layers": 2, "num_decoder_layers": 2}
    config = TransformerConfig(vocab_size=9, target_vocab_size=8, **sizes, **layers, **options)
    model = Transformer(config)
    randomize(model)
    upstream = RNG.normal(size=(4, 8))

    def function(params):
        logits = transformer.transformer(params, 2, [5, 8, 5, 3, 0], [2, 4, 7, 0], config.norm)
        return (logits * upstream).sum()

    params = transformer_parameters(model)
    expected = central_differences(function, params)
    np.testing.assert_allclose(slopes(function, params), expected, rtol=1e-6, atol=1e-7)


def test_attention_backward():
    inputs = [RNG.normal(size=(length, 3)) for length in (4, 5, 5)]
    upstream, mask = RNG.normal(size=(4, 3)), RNG.random((4, 5)) < 0.6
    mask[1] = False
    gradients = list(transformer.attention_backward(*inputs, mask, upstream))
    expected = slopes(lambda x: (transformer.attention(*x, mask)[0] * upstream).sum(), inputs)
    assert_close(slopes_of_gradient(gradients), expected, "float64")
    assert not gradients[0][1].any()


@pytest.mark.parametrize("convention", ["t2t", "keras"])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_gradient_of_the_loss(smoothing, convention):
    arguments, logits = (smoothing, convention), RNG.normal(0, 3, (2, 2, 5))
    labels = np.array([[3, 0], [1, 4]])
    gradient = loss.smoothed_cross_entropy_gradient(labels, logits, *arguments)
    (expected,) = slopes(
        lambda tree: loss.smoothed_cross_entropy(labels, tree[0], *arguments).sum(), [logits]
    )
    assert_close(slopes_of_gradient([gradient]), [expected], "float64")
