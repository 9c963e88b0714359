"""The models that the converters get."""

import numpy as np

from keras_transformer.export.steps import _Int8Embedding
from tests.closeness import assert_close


def test_the_scale_of_a_row_of_zeros_is_like_the_others():
    """A quantizer of the scales with one step for all keeps them: padding is zeros."""
    matrix = np.array([[0.0, 0.0], [0.5, -0.25], [0.1, 0.2]], "float32")
    embedding = _Int8Embedding(matrix)
    assert_close(embedding.scales[:, 0] * 127, [0.5, 0.5, 0.2])
    np.testing.assert_allclose(embedding(np.array([0, 1, 2])), matrix, atol=0.5 / 127)
