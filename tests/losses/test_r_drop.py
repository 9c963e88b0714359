"""R-Drop: its loss, its gradient, and models that train with it."""

import keras
import numpy as np
import pytest

from keras_transformer.losses import loss_model
from keras_transformer.training import LossModel
from tests.closeness import assert_close
from tests.losses.test_loss_model import (
    VOCAB,
    check_equal,
    corpus_of,
    loss_and_gradients,
    only_batch,
    sentences,
    small,
    token_losses,
)
from tests.oracle import loss as oracle
from tests.precision.gradients import array, value_and_gradients

RNG = np.random.default_rng(3)
ROWS, LENGTH, WIDTH, ALPHA = 3, 4, 16, 5.0


def oracle_losses(states, embeddings, labels):
    """`[ROWS, LENGTH]`; the two passes of a row of labels follow each other."""
    first, second = (states[start::2] @ embeddings.T for start in (0, 1))
    return np.where(labels != 0, oracle.r_drop(labels, first, second, 0.1, ALPHA), 0.0)


def slopes(function, at, step=1e-5):
    """The gradient of a function of one array, by central differences."""
    gradient = np.zeros_like(at)
    for index in np.ndindex(at.shape):
        change = np.zeros_like(at)
        change[index] = step
        gradient[index] = (function(at + change) - function(at - change)) / (2 * step)
    return gradient


@pytest.mark.parametrize("equal_factors", [True, False])
@pytest.mark.parametrize("slices", ["one", "several"])
def test_loss_and_gradient_are_those_of_equation_4(monkeypatch, slices, equal_factors):
    if slices == "several":
        monkeypatch.setattr(loss_model, "LOGITS_BYTES", 2 * 4 * VOCAB * 4)  # 4 tokens each
    numbers = RNG.normal(size=(2 * ROWS, LENGTH, WIDTH)), RNG.normal(size=(VOCAB, WIDTH))
    labels = RNG.integers(1, VOCAB, (ROWS, LENGTH)).astype("int32")
    labels[0, 2:] = 0
    factors = np.ones(labels.shape) if equal_factors else RNG.random(labels.shape)
    states = keras.Variable(numbers[0].astype("float32"))
    model = LossModel(small(), r_drop=ALPHA)
    embeddings = model.transformer.target_embedding.embeddings
    embeddings.assign(numbers[1])

    def weighted_sum():
        losses = model.token_losses(keras.ops.convert_to_tensor(states), labels, training=True)
        return keras.ops.sum(losses * keras.ops.convert_to_tensor(factors, "float32"))

    value, gradients = value_and_gradients(weighted_sum, [states, embeddings])

    def oracle_sum(states, embeddings):
        return (factors * oracle_losses(states, embeddings, labels)).sum()

    assert_close(value, oracle_sum(*numbers))
    of_states = slopes(lambda x: oracle_sum(x, numbers[1]), numbers[0])
    of_embeddings = slopes(lambda x: oracle_sum(numbers[0], x), numbers[1])
    assert_close(gradients[0], of_states)
    assert_close(gradients[1], of_embeddings)


def test_the_two_passes_drop_differently_and_only_in_training():
    batch = only_batch(corpus_of(sentences(9)))
    inputs, labels, _ = batch
    losses, answers = {}, {}
    for alpha in (1e-6, 5.0):
        model = LossModel(small(dropout=0.3), r_drop=alpha)
        answers[alpha] = array(token_losses(model, inputs, labels))
        losses[alpha] = array(token_losses(model, inputs, labels, training=True))
        assert losses[alpha].shape == labels.shape
    plain = array(token_losses(LossModel(small(dropout=0.3)), inputs, labels))
    for alpha in losses:
        np.testing.assert_array_equal(answers[alpha], plain)
    # The same seeds drop the same, so that only the divergences differ.
    assert (losses[5.0] > losses[1e-6] + 1e-4)[labels != 0].all()


@pytest.mark.tensorflow_only("steps in parts need the TensorFlow backend")
def test_a_step_in_parts_is_the_step():
    batch = only_batch(corpus_of(sentences(20)))
    model = LossModel(small(), r_drop=5.0)
    expected = loss_and_gradients(model, batch)
    model.micro_batches = 2
    check_equal(loss_and_gradients(model, batch), expected)
