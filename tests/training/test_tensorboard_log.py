"""The event files of a training, read back: the figures of the history, sentences, a picture."""

import collections

import numpy as np
import pytest

from keras_transformer.data import PairsCorpus
from keras_transformer.models import TrainingRecipe
from keras_transformer.training import compile_model, train
from tests.closeness import assert_close
from tests.losses.test_loss_model import small
from tests.tiny_translator import sentence
from tests.training.test_trainer import settings

pytestmark = pytest.mark.slow

DEV = [("a red house", "a red house"), ("the dog", "the dog | opens *it*"), ("on the boat", "boat")]
COLUMNS = {"train_loss": "train/loss", "learning_rate": "train/learning_rate"}
COLUMNS |= {"valid_loss": "valid/loss", "valid_bleu": "valid/bleu"}
COLUMNS |= {"valid_chrf": "valid/chrf"}


def read(directory):
    """Event files as {tag: {step: value}}."""
    import tensorflow as tf

    found = collections.defaultdict(dict)
    for path in sorted((directory / "tensorboard").iterdir()):
        for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
            event = tf.compat.v1.Event.FromString(record)
            for value in event.summary.value:
                plugin = value.metadata.plugin_data.plugin_name
                found[plugin, value.tag][event.step] = tf.make_ndarray(value.tensor)
    return found


def test_figures_are_those_of_the_history_and_answers_have_their_attention(tmp_path):
    import tensorflow as tf

    pairs = PairsCorpus([(sentence(3, seed), sentence(4, seed)) for seed in range(80)])
    recipe = {"tokens_per_batch": 128, "warmup_steps": 20, "clip_norm": 0.1}
    steps = {"max_steps": 20, "evaluate_every": 10, "checkpoint_every": 10, "bleu_every": 1}
    steps |= {"packed_width": 0}  # on every backend
    changed = settings(**steps, recipe=recipe, tensorboard=True)
    history = train(tmp_path, pairs, PairsCorpus(DEV), changed).history
    found = read(tmp_path)
    for column, tag in COLUMNS.items():
        expected = {int(row["step"]): float(row[column]) for row in history}
        assert expected.keys() == {10, 20}
        assert found["scalars", tag] == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert all(speed > 0 for speed in found["scalars", "train/tokens_per_second"].values())
    for side in ("source", "target"):
        assert 0 <= found["scalars", f"padding/{side}"][10] < 0.5
    # The norm before clipping at 0.1.
    assert found["scalars", "train/gradient_norm"][10] > 0.1
    table = found["text", "valid/translations"][20]
    rows = [tuple(cell.decode() for cell in row) for row in table]
    assert rows[0] == ("source", "translation", "reference")
    assert [(source, reference) for source, _, reference in rows[1:]] == DEV
    width, height, picture = found["images", "valid/attention"][10]
    assert tf.io.decode_png(picture).shape[:2] == (int(height), int(width))


@pytest.mark.tensorflow_only("the norm is a variable of TensorFlow")
@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("clip_norm", [None, 0.01])
def test_the_gradient_norm_is_that_of_the_gradient_before_clipping(clip_norm):
    import tensorflow as tf

    model = compile_model(small(), TrainingRecipe(clip_norm=clip_norm))
    ids = np.random.default_rng(0).integers(4, 12, (4, 5)).astype("int32")
    inputs, weights = {"source": ids, "target": ids}, np.full((4, 5), 1 / 20, "float32")
    with tf.GradientTape() as tape:
        loss = model.loss(ids, model(inputs, training=True), weights)
    gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
    expected = float(tf.linalg.global_norm(gradients))
    state = [variable.path for variable in model.optimizer.variables]
    model.optimizer.watch_gradient_norm(model)
    model.train_on_batch(inputs, ids, weights)
    assert_close(float(model.optimizer.gradient_norm), expected)
    assert expected > 0.01
    # The state that a training resumes from is the same with and without it.
    assert [variable.path for variable in model.optimizer.variables] == state
