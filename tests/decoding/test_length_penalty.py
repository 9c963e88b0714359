"""((5 + length) / 6) ** alpha, with EOS in the length."""

import numpy as np
import pytest
from keras import ops

from keras_transformer.decoding import length_penalty


def test_values():
    lengths = np.array([[1, 7], [13, 50]], "int32")
    found = ops.convert_to_numpy(length_penalty(lengths, 0.6))
    np.testing.assert_allclose(found, [[1.0, 2**0.6], [3**0.6, (55 / 6) ** 0.6]], rtol=1e-6)
    assert found.dtype == np.float32
    found = ops.convert_to_numpy(length_penalty(lengths, 0.6, "length"))
    np.testing.assert_allclose(found, lengths**0.6, rtol=1e-6)
    assert np.all(ops.convert_to_numpy(length_penalty(lengths, 0.0)) == 1.0)


@pytest.mark.parametrize("alpha", [-0.1, float("inf"), None, True])
def test_other_alphas_are_refused(alpha):
    with pytest.raises(ValueError, match="length_penalty"):
        length_penalty(3, alpha)
