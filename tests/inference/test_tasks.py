"""A task is one folder and one entry: a third one trains, saves, loads, evaluates and exports."""

import itertools
import json

import pytest

from keras_transformer.data import PairsCorpus
from keras_transformer.errors import UserError
from keras_transformer.inference import Translator, tasks
from keras_transformer.inference.tasks import get_task, register_task, task_names
from tests.training.uncompiled import uncompiled

pytestmark = pytest.mark.tensorflow_only("train")


@pytest.fixture(autouse=True, scope="module")
def reversal():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks, "_ENTRIES", dict(tasks._ENTRIES))
        register_task("reversal", "tests.inference.toy_task.ReversalTask")
        yield
    get_task.cache_clear()


@pytest.fixture(scope="module")
def trained(reversal, tmp_path_factory):
    from keras_transformer.training import TrainingSettings, train

    words = "one two three four five".split()
    sentences = [" ".join(some) for some in itertools.permutations(words, 3)]
    corpus = PairsCorpus([(text, " ".join(text.split()[::-1])) for text in sentences])
    settings = TrainingSettings(
        task="reversal",
        preset="tiny",
        model={"num_encoder_layers": 1, "num_decoder_layers": 1, "d_model": 16, "num_heads": 2},
        recipe={"tokens_per_batch": 512},
        max_steps=2,
    )
    output = tmp_path_factory.mktemp("toy") / "model"
    with uncompiled():
        return output, train(output, corpus, corpus, settings)


@pytest.mark.slow
def test_it_is_trained_and_scored(trained):
    output, result = trained
    assert type(result.reverser).__name__ == "Reverser"
    assert 0.0 <= result.exact <= 100.0
    assert "valid_exact" in (output / "history.csv").read_text().splitlines()[0]
    assert result.translator is None and result.f1 is None
    with pytest.raises(AttributeError, match="verses"):
        result.verses  # noqa: B018


@pytest.mark.slow
def test_its_directory_is_loaded_by_its_own_class(trained):
    output, result = trained
    assert json.loads((output / "config.json").read_text())["task"] == "reversal"
    loaded = get_task("reversal").pipeline.load(output)
    texts = ["one two", "five four three"]
    assert loaded.translate(texts) == result.reverser.translate(texts)
    with pytest.raises(UserError, match="holds a Reverser, not a Translator: use Reverser.load"):
        Translator.load(output)


@pytest.mark.slow
def test_it_is_exported(trained, tmp_path):
    tf = pytest.importorskip("tensorflow")
    pytest.importorskip("tensorflow_text")
    from keras_transformer.export import export_saved_model

    texts = ["one two", "three one five"]
    path = export_saved_model(trained[1].reverser, tmp_path / "1")
    served = tf.saved_model.load(path).signatures["serving_default"](text=tf.constant(texts))
    found = [text.decode() for text in served["translation"].numpy()]
    assert found == trained[1].reverser.translate(texts)


def test_a_task_that_nobody_registered_is_one_clear_line():
    assert task_names()[-1] == "reversal"
    with pytest.raises(ValueError, match="`task` must be one of .*'reversal'.*'cooking'"):
        get_task("cooking")
