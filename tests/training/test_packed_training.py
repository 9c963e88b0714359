"""train with several pairs in a row: it learns, resumes where it was, and keeps its width."""

import keras
import pytest

from keras_transformer.training import train
from tests.closeness import assert_all_close
from tests.training.test_trainer import corpus, run, settings
from tests.training.uncompiled import AtStep, interrupt

pytestmark = pytest.mark.tensorflow_only("`train` reads its data with tf.data")


class Spy(keras.callbacks.Callback):
    """Keeps the model that is fitted."""

    fitted = None

    def on_train_begin(self, logs=None):
        self.fitted = self.model


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A directory after seven steps on packed rows, the result, the lines and the fitted model."""
    directory, lines, spy = tmp_path_factory.mktemp("packed") / "model", [], Spy()
    result = train(
        directory,
        corpus(1),
        corpus(2, 8),
        settings(max_steps=7, packed_width=16),
        report=lines.append,
        callbacks=[spy],
    )
    return directory, result, lines, spy.fitted


@pytest.mark.slow
def test_rows_are_packed_and_the_loss_falls(whole):
    directory, result, lines, fitted = whole
    assert fitted.packed
    # Batches of 8 rows of 16; 64 pairs of two to four words and an end do not fit into one of them.
    (line,) = [line for line in lines if "steps an epoch" in line]
    tokens, steps = (int(line.split(f" {word}")[0].split()[-1]) for word in ("target", "steps"))
    assert -(-tokens // 128) <= steps < 64 // 8
    losses = [float(row["valid_loss"]) for row in result.history]
    assert losses == sorted(losses, reverse=True) and losses[-1] < losses[0] - 0.1
    assert len(result.translator.translate(["a b", "c"])) == 2
    assert (directory / "model.weights.h5").is_file()


@pytest.mark.slow
def test_interrupted_and_resumed_equals_uninterrupted(whole, tmp_path):
    changes = {"max_steps": 7, "packed_width": 16}
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, callbacks=[AtStep(5, interrupt)], **changes)
    lines = []
    resumed = run(tmp_path, lines, **changes)
    assert any(line.startswith("Resuming after step 3") for line in lines)
    expected = whole[1]
    for name in ("step", "valid_loss", "learning_rate"):
        assert [row[name] for row in resumed.history] == [row[name] for row in expected.history]
    models = resumed.translator.model, expected.translator.model
    assert_all_close(*(model.get_weights() for model in models))
