"""A training that diverges: the step is named, and the very batch of that step is kept."""

import itertools

import keras
import numpy as np
import pytest

from keras_transformer.data import PairsCorpus
from keras_transformer.errors import UserError
from keras_transformer.models import TrainingRecipe
from keras_transformer.training import StopOnNonFiniteLoss, TrainingSettings, train
from keras_transformer.training.training_run import TrainingData, make_tokenizers
from tests.training.uncompiled import RUN_EAGERLY, AtStep

CORPUS = PairsCorpus([("a b c d e f"[: 2 * (n % 5) + 1], "b " * (n % 4 + 1)) for n in range(200)])
RECIPE = {"tokens_per_batch": 64, "warmup_steps": 20}
SETTINGS = TrainingSettings(
    preset="tiny",
    model={"num_encoder_layers": 1, "num_decoder_layers": 1, "d_model": 16, "num_heads": 2},
    recipe=RECIPE,
    bleu_every=0,
    tokenizer="subword",
    vocab_size=None,
    max_steps=80,
)


def diverge(directory, step, value):
    """Breaks the embedding before a step, as the update of the step before might."""

    def break_embedding(model):
        variable = model.transformer.target_embedding.weights[0]
        variable.assign(value * np.random.default_rng(0).normal(size=variable.shape))

    breaks = AtStep(step, break_embedding, before=True)
    with pytest.raises(UserError) as error:
        train(directory, CORPUS, None, SETTINGS, callbacks=[breaks])
    path = directory / "diverged-batch.npz"
    assert f"at step {step}: the training has diverged" in str(error.value)
    assert f"The batch of that step is in {str(path)!r}" in str(error.value)
    assert "\n" not in str(error.value)
    with np.load(path) as file:
        return dict(file), str(error.value)


@pytest.fixture(scope="module")
def data():
    recipe = TrainingRecipe(**RECIPE)
    data = TrainingData(CORPUS, None, make_tokenizers(CORPUS, SETTINGS), SETTINGS, recipe)
    assert 10 < data.steps_per_epoch < 60
    return data


def check(found, data, step):
    """Compares with the batches of the epochs, counted from the beginning."""
    epochs = (data.batches.batches(epoch) for epoch in itertools.count())
    batches = [
        {**inputs, "labels": labels, "weights": weights}
        for inputs, labels, weights in itertools.islice(itertools.chain.from_iterable(epochs), step)
    ]
    for name, expected in batches[-1].items():
        np.testing.assert_array_equal(found[name], expected)
    assert divmod(step - 1, data.steps_per_epoch) == (found["epoch"], found["batch"])
    assert ("previous_source" in found) == (step > 1)
    if step > 1:
        for name, expected in batches[-2].items():
            np.testing.assert_array_equal(found[f"previous_{name}"], expected)


@pytest.mark.slow
@pytest.mark.tensorflow_only("`train` reads its data with tf.data")
@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize(
    "place",
    [
        *(pytest.param(place, marks=pytest.mark.slow) for place in ("first", "later", "last")),
        "next epoch",
    ],
)
def test_the_batch_of_a_loss_that_is_no_number_is_saved(tmp_path, data, place):
    steps = data.steps_per_epoch
    step = {"first": 1, "later": 7, "last": steps, "next epoch": steps + 1}[place]
    found, message = diverge(tmp_path / "model", step, np.nan)
    check(found, data, step)
    assert message.startswith("The loss is nan")


@pytest.mark.slow
@pytest.mark.tensorflow_only("`train` reads its data with tf.data")
@pytest.mark.usefixtures("uncompiled")
def test_an_exploding_loss_stops_too(tmp_path, data):
    found, message = diverge(tmp_path / "model", 7, 1e6)
    check(found, data, 7)
    assert "above 100" in message


@pytest.mark.parametrize("every, step", [(1, 7), (3, 9)])
def test_the_limit_is_one_of_the_steps_since_the_last_look_and_not_of_the_whole_epoch(every, step):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.0), "mse", run_eagerly=RUN_EAGERLY)
    targets = np.zeros((12, 1))
    targets[6] = 1e3
    inputs = np.zeros((12, 1))
    # The mean over the seven steps is below the limit.
    limit = 1e6 / 6
    with pytest.raises(UserError, match=f"above 1.67e.05, at step {step}:"):
        model.fit(
            inputs,
            targets,
            batch_size=1,
            shuffle=False,
            verbose=0,
            callbacks=[StopOnNonFiniteLoss(every, limit)],
        )
    model.fit(inputs, targets, batch_size=1, verbose=0, callbacks=[StopOnNonFiniteLoss(every)])
