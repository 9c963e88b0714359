"""LabelSmoothedCrossEntropy: the explicit soft target's value and gradient, at any scale."""

import keras
import numpy as np
import pytest

from keras_transformer.training.label_smoothing import (
    LabelSmoothedCrossEntropy,
    _with_gradient,
    closed_form,
    smoothed_cross_entropy,
    smoothing_weight,
)

tf = pytest.importorskip("tensorflow")

BATCH, LENGTH, CLASSES = 3, 4, 11


def soft_target(labels, smoothing, convention):
    """The target distribution itself, `[batch, length, V]`, which the library never builds."""
    if convention == "t2t":
        target = np.full((*labels.shape, CLASSES), smoothing / (CLASSES - 1))
        np.put_along_axis(target, labels[..., None], 1 - smoothing, axis=-1)
    else:
        target = np.full((*labels.shape, CLASSES), smoothing / CLASSES)
        np.put_along_axis(target, labels[..., None], 1 - smoothing + smoothing / CLASSES, axis=-1)
    return target


def reference(labels, logits, smoothing, convention):
    """Loss of every token and its gradient, in float64."""
    logits = logits.astype("float64")
    shifted = logits - logits.max(-1, keepdims=True)
    log_softmax = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    target = soft_target(labels, smoothing, convention)
    return -(target * log_softmax).sum(-1), np.exp(log_softmax) - target


@pytest.fixture
def example():
    generator = np.random.default_rng(0)
    labels = generator.integers(0, CLASSES, (BATCH, LENGTH)).astype("int32")
    return labels, generator.normal(0, 3, (BATCH, LENGTH, CLASSES))


def value_and_gradient(function, labels, logits, upstream=None):
    logits = tf.constant(logits)
    with tf.GradientTape() as tape:
        tape.watch(logits)
        value = function(tf.constant(labels), logits)
    return value.numpy(), tape.gradient(value, logits, output_gradients=upstream).numpy()


@pytest.mark.parametrize("convention", ["t2t", "keras"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_equals_the_explicit_soft_target_in_value_and_gradient(example, convention, smoothing):
    labels, logits = example
    loss = LabelSmoothedCrossEntropy(smoothing, convention, reduction="none")
    value, gradient = value_and_gradient(loss, labels, logits)
    expected_value, expected_gradient = reference(labels, logits, smoothing, convention)
    assert value.dtype == "float64"
    np.testing.assert_allclose(value, expected_value, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("function", [smoothed_cross_entropy, closed_form, _with_gradient])
def test_every_path_gives_the_same_value_and_gradient(example, function):
    labels, logits = example
    weight = smoothing_weight(0.1, CLASSES)
    upstream = np.random.default_rng(1).normal(size=labels.shape)
    value, gradient = value_and_gradient(
        lambda y, x: function(y, x, weight), labels, logits, tf.constant(upstream)
    )
    expected_value, expected_gradient = reference(labels, logits, 0.1, "t2t")
    np.testing.assert_allclose(value, expected_value, rtol=1e-12)
    np.testing.assert_allclose(gradient, expected_gradient * upstream[..., None], atol=1e-12)


@pytest.mark.parametrize("function", [smoothed_cross_entropy, _with_gradient])
def test_is_finite_for_huge_logits(example, function):
    labels, logits = example
    logits = np.sign(logits).astype("float32") * 1e4
    value, gradient = value_and_gradient(lambda y, x: function(y, x, 0.1), labels, logits)
    assert np.isfinite(value).all()
    assert np.isfinite(gradient).all()


def test_default_is_a_weighted_sum(example):
    labels, logits = example
    weights = np.random.default_rng(2).random(labels.shape)
    value = LabelSmoothedCrossEntropy(0.1)(labels, logits, weights)
    expected, _ = reference(labels, logits, 0.1, "t2t")
    np.testing.assert_allclose(value, (expected * weights).sum(), rtol=1e-12)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_logits_are_raised_to_float32(example, dtype):
    labels, logits = example
    half = tf.cast(logits, dtype)
    value = LabelSmoothedCrossEntropy(0.1, reduction="none")(labels, half)
    assert value.dtype == tf.float32
    expected, _ = reference(labels, half.numpy().astype("float64"), 0.1, "t2t")
    np.testing.assert_allclose(value, expected, rtol=1e-6)


def test_compiled_graph_has_no_one_hot_and_one_gradient(example):
    labels, logits = example

    @tf.function
    def step(labels, logits):
        with tf.GradientTape() as tape:
            tape.watch(logits)
            loss = LabelSmoothedCrossEntropy(0.1)(labels, logits)
        return tape.gradient(loss, logits)

    logits = tf.constant(logits, "float32")
    operations = step.get_concrete_function(tf.constant(labels), logits).graph.get_operations()
    assert not [operation for operation in operations if operation.type == "OneHot"]
    np.testing.assert_allclose(
        step(labels, logits), reference(labels, logits.numpy(), 0.1, "t2t")[1], atol=1e-6
    )


def test_config_round_trip():
    loss = LabelSmoothedCrossEntropy(0.2, "keras", reduction="none")
    copy = keras.losses.deserialize(keras.losses.serialize(loss))
    assert (copy.label_smoothing, copy.convention, copy.reduction) == (0.2, "keras", "none")


def test_fit_reports_the_mean_per_token_with_normalised_weights(example):
    labels, logits = example
    mask = (np.arange(LENGTH) < 2) * np.ones((BATCH, 1))
    weights = (mask / mask.sum()).astype("float32")
    inputs = keras.Input((LENGTH, CLASSES))
    model = keras.Model(inputs, keras.layers.Activation("linear")(inputs))
    model.compile(loss=LabelSmoothedCrossEntropy(0.1))
    reported = model.evaluate(logits, labels, sample_weight=weights, verbose=0, batch_size=BATCH)
    expected, _ = reference(labels, logits, 0.1, "t2t")
    np.testing.assert_allclose(reported, expected[mask > 0].mean(), rtol=1e-5)


@pytest.mark.parametrize("arguments", [{"label_smoothing": 1.0}, {"convention": "torch"}])
def test_wrong_arguments_say_what_was_received(arguments):
    with pytest.raises(ValueError, match="Received"):
        LabelSmoothedCrossEntropy(**arguments)
