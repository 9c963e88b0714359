"""Layers, model, gradient and loss are as near to the oracle as their dtype allows."""

import keras
import pytest

from keras_transformer import layers
from tests.precision.components import COMPONENTS
from tests.precision.measurements import policies


def is_fast(name, policy):
    """Single precision, and the half precision of `train`; test_transformer.py has the others."""
    return policy == "float32" or (policy == "mixed_bfloat16" and "pre-norm" not in name)


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        pytest.param(name, policy, marks=() if is_fast(name, policy) else pytest.mark.slow)
        for name in COMPONENTS
        for policy in policies()
    ],
)
def test_error_is_within_the_bound(name, policy):
    component = COMPONENTS[name]
    assert component.measure(policy) <= component.bound(policy)


def test_every_public_layer_that_computes_is_measured():
    measured = {name.split(",")[0].split(" ")[0] for name in COMPONENTS}
    # Parts and variants of attention are compared with NumPy in tests/layers.
    names = [name for name in layers.__all__ if "Position" not in name and "Attention" not in name]
    assert set(names) - measured == {"Dropout"}
    assert "MultiHeadAttention" in measured


@pytest.mark.parametrize(
    "policy",
    [
        "mixed_bfloat16",
        *(pytest.param(policy, marks=pytest.mark.slow) for policy in ("mixed_float16", "bfloat16")),
    ],
)
def test_half_precision_is_what_was_measured(policy):
    """Else the bounds of half precisions would hold for float32 in disguise."""
    model = COMPONENTS["Transformer, logits"]
    assert model.measure(policy) > 10 * model.bound("float32")
    assert keras.config.dtype_policy().name == "float32"
