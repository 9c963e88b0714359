"""Keras' attention and ours compute the same, and hand their weights to each other."""

import keras
import numpy as np
import pytest

from keras_transformer.bridges import from_keras, to_keras
from keras_transformer.layers import AdditiveAttention, MultiHeadAttention, RotaryPosition
from tests.closeness import assert_close
from tests.layers.oracle_parameters import array, randomize

RNG = np.random.default_rng(4)
QUERY, VALUE, KEY = (RNG.normal(size=(2, n, d)).astype("float32")
                     for n, d in ((9, 6), (9, 8), (9, 5)))  # fmt: skip
PADDING = (np.arange(9) < np.array([[9], [7]]))[:, None]
CASES = {
    "default": {},
    "value_dim": {"value_dim": 7},
    "window": {"sliding_window": 3},
    "regularized": {"kernel_regularizer": "l2", "dropout": 0.1, "seed": 3, "use_bias": True},
}


@pytest.mark.parametrize("case, key, is_causal", [
    ("default", None, True), ("value_dim", KEY, False), ("window", KEY, True),
    ("regularized", None, False),
])  # fmt: skip
def test_both_compute_the_same_and_come_back(case, key, is_causal):
    if case == "value_dim" and keras.backend.backend() == "jax":
        pytest.skip("Keras' layer needs value_dim=key_dim on JAX")
    theirs = keras.layers.MultiHeadAttention(2, 4, **{"use_bias": False, **CASES[case]})
    inputs = {"query": QUERY, "value": VALUE, "key": key}
    theirs(**inputs)
    randomize(theirs)
    options = {"attention_mask": PADDING, "use_causal_mask": is_causal}
    expected = array(theirs(**inputs, **options))
    ours = from_keras(theirs)
    assert_close(array(ours(**inputs, **options)), expected)
    again = to_keras(ours)
    assert_close(array(again(**inputs, **options)), expected)
    config, wanted = again.get_config(), theirs.get_config()
    for name in ("name", "value_dim", "query_shape", "value_shape", "key_shape"):
        config.pop(name, None), wanted.pop(name, None)
    assert config == wanted


@pytest.mark.parametrize("settings, named", [
    ({"use_gate": True}, "use_gate=True"),
    ({"kernel_constraint": "non_neg"}, "kernel_constraint="),
])  # fmt: skip
def test_what_ours_does_not_have_is_named(settings, named):
    layer = keras.layers.MultiHeadAttention(2, 4, **settings)
    layer.build(QUERY.shape, QUERY.shape)
    with pytest.raises(ValueError, match=f"must be .*Received: {named}"):
        from_keras(layer)


@pytest.mark.parametrize("settings, named", [
    ({"attention": AdditiveAttention()}, "attention of type AdditiveAttention"),
    ({"position": RotaryPosition()}, "position="),
])  # fmt: skip
def test_what_keras_does_not_have_is_named(settings, named):
    layer = MultiHeadAttention(2, 4, **settings)
    layer.build(QUERY.shape, QUERY.shape)
    with pytest.raises(ValueError, match=f"Received: {named}"):
        to_keras(layer)
    with pytest.raises(ValueError, match="not built"):
        to_keras(MultiHeadAttention(2, 4))
