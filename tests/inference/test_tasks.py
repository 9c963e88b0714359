"""A task of another package trains, saves, loads, evaluates and exports."""

import itertools
import json

import pytest

from keras_transformer.cli import main
from keras_transformer.data import PairsCorpus
from keras_transformer.errors import UserError
from keras_transformer.inference import Translator, tasks
from keras_transformer.inference.tasks import all_tasks, get_task, register_task
from tests.inference.toy_task import ReversalTask
from tests.training.uncompiled import uncompiled

pytestmark = pytest.mark.tensorflow_only("train")
ENTRY = "tests.inference.toy_task:ReversalTask"
WORDS = "one two three four five".split()
SENTENCES = [" ".join(some) for some in itertools.permutations(WORDS, 3)]
PAIRS = [(text, " ".join(text.split()[::-1])) for text in SENTENCES]
SIZES = {"num_encoder_layers": 1, "num_decoder_layers": 1, "d_model": 16, "num_heads": 2}


def register(folder, patch):
    register_task("reversal", ReversalTask())


def install(folder, patch):
    """Leaves what `pip install` of a package with an entry point leaves."""
    distribution = folder / "reversal-1.0.dist-info"
    distribution.mkdir()
    (distribution / "METADATA").write_text("Metadata-Version: 2.1\nName: reversal\nVersion: 1.0\n")
    (distribution / "entry_points.txt").write_text(f"[{tasks.ENTRY_POINTS}]\nreversal = {ENTRY}\n")
    patch.syspath_prepend(folder)


@pytest.fixture(autouse=True, scope="module", params=[register, install])
def reversal(request, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks, "_TASKS", dict(tasks._TASKS))
        tasks.find_installed_tasks.cache_clear()
        tasks._warn_once.cache_clear()
        request.param(tmp_path_factory.mktemp("package"), patch)
        yield
    tasks.find_installed_tasks.cache_clear()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    for name, lines in zip(("source", "target"), zip(*PAIRS, strict=True), strict=True):
        (folder / name).write_text("".join(line + "\n" for line in lines))
    return folder / "source", folder / "target"


@pytest.fixture(scope="module")
def trained(reversal, files, tmp_path_factory):
    """A model directory of the command."""
    output = tmp_path_factory.mktemp("toy") / "model"
    names = ("--source", "--target", "--valid-source", "--valid-target")
    options = [str(word) for pair in zip(names, files * 2, strict=True) for word in pair]
    options += ["--preset", "tiny", "--max-steps", "2", "--tokens-per-batch", "512"]
    for name, value in SIZES.items():
        options += ["--" + name.replace("_", "-"), str(value)]
    with uncompiled():
        assert main(["train", "--task", "reversal", "--output", str(output), *options]) == 0
    return output


@pytest.mark.slow
def test_it_is_trained_in_python_and_scored(tmp_path):
    from keras_transformer.training import TrainingSettings, train

    corpus, recipe = PairsCorpus(PAIRS), {"tokens_per_batch": 512}
    settings = TrainingSettings(
        task="reversal", preset="tiny", model=SIZES, recipe=recipe, max_steps=2
    )
    with uncompiled():
        result = train(tmp_path / "model", corpus, corpus, settings)
    assert type(result.pipeline).__name__ == "Reverser"
    assert 0.0 <= result.score <= 100.0
    assert result.translator is None and result.f1 is None
    with pytest.raises(AttributeError, match="verses"):
        result.verses  # noqa: B018


@pytest.mark.slow
def test_its_directory_is_loaded_by_its_class(trained):
    assert "valid_exact" in (trained / "history.csv").read_text().splitlines()[0]
    assert json.loads((trained / "config.json").read_text())["task"] == "reversal"
    assert get_task("reversal").pipeline.load(trained).translate(["one two"])
    with pytest.raises(UserError, match="holds a Reverser, not a Translator: use Reverser.load"):
        Translator.load(trained)


@pytest.mark.slow
def test_it_is_evaluated(trained, files, tmp_path):
    report = str(tmp_path / "scores.json")
    source, target = map(str, files)
    evaluate = ["evaluate", "--task", "reversal", "--model", str(trained), "--json", report]
    assert main([*evaluate, "--source", source, "--reference", target]) == 0
    scores = json.loads((tmp_path / "scores.json").read_text())["scores"]
    assert [one["name"] for one in scores] == ["BLEU", "chrF"]


@pytest.mark.slow
def test_it_is_exported(trained, tmp_path):
    tf = pytest.importorskip("tensorflow")
    pytest.importorskip("tensorflow_text")
    texts, path = ["one two", "three one five"], tmp_path / "1"
    assert main(["export", "--model", str(trained), "--output", str(path)]) == 0
    served = tf.saved_model.load(path).signatures["serving_default"](text=tf.constant(texts))
    found = [text.decode() for text in served["translation"].numpy()]
    assert found == get_task("reversal").pipeline.load(trained).translate(texts)


def test_the_commands_list_it(capsys):
    assert main(["train", "--help"]) == 0
    assert "or reversal, from sentences and their reversals" in capsys.readouterr().out
    assert main(["evaluate", "--task", "cooking", "--hypothesis", "x"]) == 2
    assert "'cooking' (choose from 'translation', 'parsing', 'reversal')" in capsys.readouterr().err


def test_one_that_nobody_registered_is_one_clear_line():
    with pytest.raises(ValueError, match="`task` must be one of .*'reversal'.*'cooking'"):
        get_task("cooking")


def test_one_that_cannot_be_imported_stops_no_other(caplog):
    register_task("cooking", "no_such_package:Cooking")
    names = [task.name for task in all_tasks()]
    assert names == ["translation", "parsing", "reversal"]
    assert "The task 'cooking' cannot be imported: No module named" in caplog.text
    del tasks._TASKS["cooking"]
