"""A task of another package trains, saves, loads, evaluates and exports."""

import itertools
import json

import pytest

from keras_transformer.cli import main
from keras_transformer.errors import UserError
from keras_transformer.inference import Translator, tasks
from keras_transformer.inference.tasks import all_tasks, get_task, register_task
from tests.training.uncompiled import uncompiled

pytestmark = pytest.mark.tensorflow_only("train")
SENTENCES = [" ".join(some) for some in itertools.permutations("one two three four".split(), 3)]
MODEL = "--num-encoder-layers 1 --num-decoder-layers 1 --d-model 16 --num-heads 2".split()


@pytest.fixture(autouse=True, scope="module")
def installed(tmp_path_factory):
    """Leaves what `pip install` of a package with an entry point leaves."""
    folder = tmp_path_factory.mktemp("package")
    distribution = folder / "reversal-1.0.dist-info"
    distribution.mkdir()
    (distribution / "METADATA").write_text("Metadata-Version: 2.1\nName: reversal\nVersion: 1.0\n")
    entry = "reversal = tests.inference.toy_task:ReversalTask"
    (distribution / "entry_points.txt").write_text(f"[{tasks.ENTRY_POINTS}]\n{entry}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks, "_TASKS", dict(tasks._TASKS))
        tasks.find_installed_tasks.cache_clear()
        tasks._warn_once.cache_clear()
        patch.syspath_prepend(folder)
        yield
    tasks.find_installed_tasks.cache_clear()


@pytest.mark.slow
def test_it_is_trained_loaded_evaluated_and_exported(tmp_path):
    tf = pytest.importorskip("tensorflow")
    pytest.importorskip("tensorflow_text")
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_text("".join(text + "\n" for text in SENTENCES))
    target.write_text("".join(" ".join(text.split()[::-1]) + "\n" for text in SENTENCES))
    model = str(tmp_path / "model")
    arguments = ["train", "--task", "reversal", "--output", model, "--preset", "tiny", *MODEL]
    arguments += ["--source", source, "--target", target, "--max-steps", "2"]
    arguments += ["--valid-source", source, "--valid-target", target, "--tokens-per-batch", "512"]
    with uncompiled():
        assert main(list(map(str, arguments))) == 0
    assert "valid_exact" in (tmp_path / "model" / "history.csv").read_text().splitlines()[0]
    answers = get_task("reversal").pipeline.load(model).translate(SENTENCES[:2])
    with pytest.raises(UserError, match="holds a Reverser, not a Translator: use Reverser.load"):
        Translator.load(model)
    report = tmp_path / "scores.json"
    evaluate = ["evaluate", "--task", "reversal", "--model", model, "--json", report]
    assert main(list(map(str, [*evaluate, "--source", source, "--reference", target]))) == 0
    assert [one["name"] for one in json.loads(report.read_text())["scores"]] == ["BLEU", "chrF"]
    assert main(["export", "--model", model, "--output", str(tmp_path / "1")]) == 0
    serve = tf.saved_model.load(tmp_path / "1").signatures["serving_default"]
    served = serve(text=tf.constant(SENTENCES[:2]))["translation"]
    assert [text.decode() for text in served.numpy()] == answers


def test_the_commands_list_it(capsys):
    assert main(["train", "--help"]) == 0
    assert "or reversal, from sentences and their reversals" in capsys.readouterr().out
    assert main(["evaluate", "--task", "cooking", "--hypothesis", "x"]) == 2
    assert "'cooking' (choose from 'translation', 'parsing', 'reversal')" in capsys.readouterr().err
    with pytest.raises(ValueError, match="`task` must be one of .*'reversal'.*'cooking'"):
        get_task("cooking")


def test_one_that_cannot_be_imported_stops_no_other(caplog):
    register_task("cooking", "no_such_package:Cooking")
    names = [task.name for task in all_tasks()]
    assert names == ["translation", "parsing", "reversal"]
    assert "The task 'cooking' cannot be imported: No module named" in caplog.text
    del tasks._TASKS["cooking"]
