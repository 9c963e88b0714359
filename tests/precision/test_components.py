"""Layers, model, gradient and loss are as near to the oracle as their dtype allows."""

import keras
import pytest

from keras_transformer import layers
from tests.precision.components import COMPONENTS
from tests.precision.measurements import policies


@pytest.mark.parametrize("policy", policies())
@pytest.mark.parametrize("name", COMPONENTS)
def test_error_is_within_the_bound(name, policy):
    component = COMPONENTS[name]
    assert component.measure(policy) <= component.bound(policy)


def test_every_public_layer_that_computes_is_measured():
    measured = {name.split(",")[0].split(" ")[0] for name in COMPONENTS}
    assert set(layers.__all__) - measured == {"Dropout"}


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16", "bfloat16"])
def test_half_precision_is_what_was_measured(policy):
    """Else the bounds of half precisions would hold for float32 in disguise."""
    model = COMPONENTS["Transformer, logits"]
    assert model.measure(policy) > 10 * model.bound("float32")
    assert keras.config.dtype_policy().name == "float32"
