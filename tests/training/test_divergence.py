"""A training that diverges: the step is named, and the very batch of that step is kept."""

import itertools

import keras
import numpy as np
import pytest

from keras_transformer.data import PairsCorpus
from keras_transformer.data.vocabularies import learn_vocabularies
from keras_transformer.errors import UserError
from keras_transformer.models import TrainingRecipe
from keras_transformer.training import StopOnNonFiniteLoss, train
from keras_transformer.training.training_data import make_training_data
from tests.training.test_trainer import settings
from tests.training.uncompiled import RUN_EAGERLY, AtStep

CORPUS = PairsCorpus([("a b c d e f"[: 2 * (n % 5) + 1], "b " * (n % 4 + 1)) for n in range(200)])
RECIPE = {"tokens_per_batch": 64, "warmup_steps": 20}
SETTINGS = settings(recipe=RECIPE, evaluate_every=None, checkpoint_every=None, max_steps=80)


@pytest.fixture(scope="module")
def data():
    recipe = TrainingRecipe(**RECIPE)
    data = make_training_data(CORPUS, {}, learn_vocabularies(CORPUS, SETTINGS), SETTINGS, recipe)
    assert 10 < data.steps_per_epoch < 60
    return data


@pytest.mark.slow
@pytest.mark.tensorflow_only("`train` reads its data with tf.data")
@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("epoch, batch, value, message", [
    (0, 0, np.nan, "The loss is nan"),
    (0, 6, np.nan, "The loss is nan"),
    (0, -1, np.nan, "The loss is nan"),
    (1, 0, np.nan, "The loss is nan"),
    (0, 6, 1e6, "above 100"),
])  # fmt: skip
def test_the_batch_of_a_diverged_step_is_saved(tmp_path, data, epoch, batch, value, message):
    """The embedding is broken before the step, as the update of the step before might break it."""
    batch %= data.steps_per_epoch
    step = epoch * data.steps_per_epoch + batch + 1

    def break_embedding(model):
        variable = model.transformer.target_embedding.weights[0]
        variable.assign(value * np.random.default_rng(0).normal(size=variable.shape))

    breaks = AtStep(step, break_embedding, before=True)
    with pytest.raises(UserError) as error:
        train(tmp_path / "model", CORPUS, None, SETTINGS, callbacks=[breaks])
    path = tmp_path / "model" / "diverged-batch.npz"
    assert message in str(error.value) and "\n" not in str(error.value)
    assert f"at step {step}: the training has diverged" in str(error.value)
    assert f"The batch of that step is in {str(path)!r}" in str(error.value)
    with np.load(path) as file:
        found = dict(file)
    # The batches of the epochs, counted from the beginning.
    epochs = (data.batches.batches(number) for number in itertools.count())
    batches = [
        {**inputs, "labels": labels, "weights": weights}
        for inputs, labels, weights in itertools.islice(itertools.chain.from_iterable(epochs), step)
    ]
    expected = {**batches[-1], "epoch": epoch, "batch": batch}
    if step > 1:
        before = dict(zip(("epoch", "batch"), divmod(step - 2, data.steps_per_epoch), strict=True))
        expected |= {f"previous_{name}": x for name, x in {**batches[-2], **before}.items()}
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize("every, step", [(1, 7), (3, 9)])
def test_the_limit_is_one_of_the_steps_since_the_last_look_and_not_of_the_whole_epoch(every, step):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.0), "mse", run_eagerly=RUN_EAGERLY)
    inputs, targets = np.zeros((12, 1)), np.zeros((12, 1))
    targets[6] = 1e3
    options = {"batch_size": 1, "shuffle": False, "verbose": 0}
    limit = 1e6 / 6  # above the mean of the seven steps
    with pytest.raises(UserError, match=f"above 1.67e.05, at step {step}:"):
        model.fit(inputs, targets, callbacks=[StopOnNonFiniteLoss(every, limit)], **options)
    model.fit(inputs, targets, callbacks=[StopOnNonFiniteLoss(every)], **options)
