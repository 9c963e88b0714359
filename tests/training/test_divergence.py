"""A training that diverges: the step is named, and the very batch of that step is kept."""

import numpy as np
import pytest

from keras_transformer.data import PairsCorpus
from keras_transformer.data.vocabularies import learn_vocabularies
from keras_transformer.errors import UserError
from keras_transformer.models import TrainingRecipe
from keras_transformer.training import train
from keras_transformer.training.training_data import make_training_data
from tests.training.test_trainer import settings
from tests.training.uncompiled import AtStep

CORPUS = PairsCorpus([("a b c d e f"[: 2 * (n % 5) + 1], "b " * (n % 4 + 1)) for n in range(200)])
RECIPE = {"tokens_per_batch": 64, "warmup_steps": 20}
SETTINGS = settings(recipe=RECIPE, evaluate_every=None, checkpoint_every=None, max_steps=80)


@pytest.fixture(scope="module")
def data():
    recipe = TrainingRecipe(**RECIPE)
    data = make_training_data(CORPUS, {}, learn_vocabularies(CORPUS, SETTINGS), SETTINGS, recipe)
    assert 10 < data.steps_per_epoch < 60
    return data


@pytest.mark.tensorflow_only("`train` reads its data with tf.data")
@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("epoch, batch, value, message", [
    pytest.param(1, 0, np.nan, "The loss is nan", marks=pytest.mark.slow),
    (0, 1, 1e6, "above 100"),
])  # fmt: skip
def test_the_batch_of_a_diverged_step_is_saved(tmp_path, data, epoch, batch, value, message):
    """The embedding is broken before the step, as the update of the step before might break it."""
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
    for number, prefix in ((step - 1, ""), (step - 2, "previous_")):
        place = dict(zip(("epoch", "batch"), divmod(number, data.steps_per_epoch), strict=True))
        inputs, labels, weights = next(data.batches.batches(*place.values()))
        for name, array in {**inputs, "labels": labels, "weights": weights, **place}.items():
            np.testing.assert_array_equal(found[prefix + name], array)
