"""LabelSmoothedCrossEntropy: the explicit soft target's value and gradient, at any scale."""

import functools

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.losses.cross_entropy import cross_entropy, uniform_share
from keras_transformer.training import LabelSmoothedCrossEntropy
from tests.closeness import assert_close
from tests.oracle import loss as oracle
from tests.precision.gradients import array, has_float64, value_and_gradients

BATCH, LENGTH, CLASSES = 3, 4, 11
FLOAT = "float64" if has_float64() else "float32"


@pytest.fixture
def example():
    generator = np.random.default_rng(0)
    labels = generator.integers(0, CLASSES, (BATCH, LENGTH)).astype("int32")
    return labels, generator.normal(0, 3, (BATCH, LENGTH, CLASSES)).astype(FLOAT)


def value_and_gradient(function, labels, logits, upstream=1.0):
    """Losses of the tokens, and the gradient of their sum, weighted by `upstream`."""
    variable = keras.Variable(logits, dtype=logits.dtype)

    def weighted_sum():
        values = function(ops.convert_to_tensor(labels), ops.copy(variable))
        return ops.sum(values * ops.convert_to_tensor(upstream, dtype=values.dtype))

    _, (gradient,) = value_and_gradients(weighted_sum, [variable])
    value = function(ops.convert_to_tensor(labels), ops.convert_to_tensor(logits))
    assert keras.backend.standardize_dtype(value.dtype) == logits.dtype
    return array(value), gradient


@pytest.mark.parametrize("convention", ["t2t", "keras"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("form", ["of the backend", "reference"])
def test_equals_the_explicit_soft_target_in_value_and_gradient(
    example, convention, smoothing, form
):
    labels, logits = example
    function = LabelSmoothedCrossEntropy(smoothing, convention, reduction="none")
    if form == "reference":
        share = uniform_share(smoothing, CLASSES, convention)
        function = functools.partial(cross_entropy, smoothing=share)
    upstream = np.random.default_rng(1).normal(size=labels.shape)
    value, gradient = value_and_gradient(function, labels, logits, upstream)
    expected = oracle.smoothed_cross_entropy(labels, logits, smoothing, convention)
    assert_close(value, expected, FLOAT)
    expected = oracle.smoothed_cross_entropy_gradient(labels, logits, smoothing, convention)
    assert_close(gradient, expected * upstream[..., None], FLOAT)


def test_a_loss_has_the_dtype_of_its_logits():
    for dtype in {"float32", FLOAT}:
        logits = ops.zeros((1, 2, 5), dtype=dtype)
        loss = LabelSmoothedCrossEntropy(0.1)(ops.array([[1, 2]]), logits)
        assert keras.backend.standardize_dtype(loss.dtype) == dtype


@pytest.mark.parametrize("dtype", ["bfloat16", "mixed_float16", "float16"])
def test_a_half_precision_does_not_round_the_labels(dtype):
    """In bfloat16, 257 is 256."""
    logits = np.where(np.arange(600) == 257, -20.0, 0.0)[None, None].astype("float32")
    loss = LabelSmoothedCrossEntropy(0.0, dtype=dtype)(np.array([[257]]), logits)
    assert_close(loss, 20.0 + np.log(599.0 + np.exp(-20.0)))


def test_share_of_few_classes():
    """With one id, no other could share what is taken from the label: the loss is 0 anyway."""
    assert [uniform_share(0.1, num_classes) for num_classes in (1, 2, 5)] == [0.1, 0.2, 0.125]
    assert [uniform_share(0.1, num_classes, "keras") for num_classes in (1, 2)] == [0.1, 0.1]


def test_config_round_trip():
    loss = LabelSmoothedCrossEntropy(0.2, "keras", reduction="none")
    copy = keras.losses.deserialize(keras.losses.serialize(loss))
    assert (copy.label_smoothing, copy.convention, copy.reduction) == (0.2, "keras", "none")


def test_weights_of_sentences_are_refused(example):
    """They would become weights of positions where a batch has as many sentences as positions."""
    labels, logits = example
    weights = np.ones(LENGTH, "float32")
    with pytest.raises(ValueError, match=r"`sample_weight` must have the shape \[batch or 1, len"):
        LabelSmoothedCrossEntropy()(labels, logits, weights)
    whole = LabelSmoothedCrossEntropy()(labels, logits, weights[None])
    assert_close(LabelSmoothedCrossEntropy()(labels, logits, np.ones((BATCH, LENGTH, 1))), whole)
    half = LabelSmoothedCrossEntropy()(labels, logits, ops.convert_to_tensor(0.5))
    assert_close(half, 0.5 * array(whole))


def test_labels_of_another_shape_are_refused_or_squeezed(example):
    labels, logits = example
    loss = LabelSmoothedCrossEntropy(0.1)
    assert_close(float(loss(labels[..., None], logits)), float(loss(labels, logits)), FLOAT)
    with pytest.raises(ValueError, match=r"axis 0 of `y_pred`.*Received: y_true of shape \(3, 3\)"):
        loss(labels[:, :3], logits)
    with pytest.raises(ValueError, match=r"Received: y_true of shape \(4,\)"):
        loss(labels[0], logits)
