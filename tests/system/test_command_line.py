"""The command line end to end, on a few dozen generated pairs: every command on one small model."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from keras_transformer.cli import main
from keras_transformer.quickstart import number_corpus
from tests.loaded_once import load_once

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder of train, valid and test files, and the vocabulary that `vocab` makes of them."""
    folder = tmp_path_factory.mktemp("data")
    parts = number_corpus(num_train=40, num_valid=6, num_test=6)
    for name, pairs in zip(("train", "valid", "test"), parts, strict=True):
        for side, language in enumerate(("en", "de")):
            lines = "".join(f"{pair[side]}\n" for pair in pairs)
            (folder / f"{name}.{language}").write_text(lines, encoding="utf-8")
    status = main(
        ["vocab", "--input", f"{folder}/train.en", f"{folder}/train.de", "--size", "400",
         "--output", f"{folder}/vocab.model"]
    )  # fmt: skip
    assert status == 0
    return folder


def train_arguments(data, output, *more):
    files = {"source": "train.en", "target": "train.de"}
    files |= {f"valid-{name}": file.replace("train", "valid") for name, file in files.items()}
    flags = [part for name, file in files.items() for part in (f"--{name}", f"{data}/{file}")]
    return [
        "train", *flags, "--vocabulary", f"{data}/vocab.model", "--preset", "tiny",
        "--num-encoder-layers", "1", "--num-decoder-layers", "1", "--d-model", "32",
        "--intermediate-dim", "64", "--num-heads", "2",
        "--tokens-per-batch", "1024", "--warmup-steps", "10", "--checkpoint-every", "2",
        "--evaluate-every", "100", "--bleu-every", "0", "--average-checkpoints", "2",
        "--output", str(output), *more,
    ]  # fmt: skip


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    """A model directory, trained for some steps."""
    output = tmp_path_factory.mktemp("run") / "model"
    assert main(train_arguments(data, output, "--max-steps", "4")) == 0
    return output


@pytest.fixture
def model(trained, monkeypatch):
    """The model directory, whose weights no test may change."""
    load_once(monkeypatch, trained)
    return trained


@pytest.fixture
def run(capfd):
    """Calls a command that must succeed; returns its output."""

    def run_command(*arguments):
        capfd.readouterr()
        status = main([str(argument) for argument in arguments])
        captured = capfd.readouterr()
        assert status == 0, captured.err
        return captured.out

    return run_command


@pytest.mark.slow
def test_training_resumes_where_it_stopped_unless_nothing_is_left_to_do(run, data, model, tmp_path):
    output = shutil.copytree(model, tmp_path / "model")
    for steps, rows in ((4, ["step", "4"]), (6, ["step", "4", "6"])):
        run(*train_arguments(data, output, "--max-steps", steps))
        history = (output / "history.csv").read_text().splitlines()
        assert [row.split(",")[0] for row in history] == rows


def test_other_settings_on_the_same_directory_are_refused(data, model, capfd):
    assert main(train_arguments(data, model, "--dropout", "0.5")) == 2
    assert "was started with other settings" in capfd.readouterr().err


def test_translate_keeps_line_n_on_line_n(run, data, model, tmp_path):
    lines = (data / "test.en").read_text().splitlines()
    source = tmp_path / "source.txt"
    source.write_text("\n".join([lines[0], "", lines[1], lines[0]]) + "\n")
    output = tmp_path / "output.txt"
    printed = run("translate", "--model", model, "--input", source, "--chunk-size", "2")
    run("translate", "--model", model, "--input", source, "--output", output)
    answers = printed.split("\n")
    assert len(answers) == 5 and answers[-1] == ""
    assert answers[1] == ""
    assert answers[0] == answers[3]
    assert output.read_text() == printed


@pytest.mark.slow
def test_n_best_lines_have_four_fields(run, data, model, tmp_path):
    source = tmp_path / "source.txt"
    source.write_text("seven\n\n")
    printed = run("translate", "--model", model, "--input", source, "--n-best", 3)
    rows = [line.split("\t") for line in printed.splitlines()]
    assert [(row[0], row[1]) for row in rows] == [("1", "1"), ("1", "2"), ("1", "3"), ("2", "1")]
    scores = [float(row[2]) for row in rows[:3]]
    assert scores == sorted(scores, reverse=True)
    assert rows[3][3] == ""
    (best,) = run("translate", "--model", model, "--input", source).splitlines()[:1]
    assert rows[0][3] == best


def test_evaluate_scores_the_model_and_its_translation_alike(run, data, model, tmp_path):
    reference, output, report = data / "test.de", tmp_path / "out.de", tmp_path / "scores.json"
    printed = run("evaluate", "--model", model, "--source", data / "test.en", "--reference",
                  reference, "--output", output, "--json", report)  # fmt: skip
    again = run("evaluate", "--hypothesis", output, "--reference", reference)
    assert printed == again
    assert "tok:13a" in printed and "chrF" in printed
    content = json.loads(report.read_text())
    assert content["num_lines"] == 6
    assert content["search"]["beam_size"] == 5  # the preset's
    assert {score["name"] for score in content["scores"]} >= {"BLEU"}


def test_evaluate_takes_several_references_and_ignores_case_on_demand(run, data, tmp_path):
    reference, upper = data / "test.de", tmp_path / "upper.de"
    upper.write_bytes(reference.read_bytes().upper())  # ASCII letters only

    def bleu(*arguments):
        return run("evaluate", "--hypothesis", reference, "--reference", *arguments).split()[1]

    assert float(bleu(upper)) < 50
    assert bleu(upper, reference) == "100.00"
    assert bleu(upper, "--lowercase") == "100.00"


def test_average_is_the_mean_of_the_checkpoints(run, model, tmp_path):
    from keras_transformer.models.weight_files import read_weights

    files = sorted((model / "checkpoints").glob("step-*.weights.h5"))[-2:]
    output = tmp_path / "mean.weights.h5"
    run("average", "--output", output, *files)
    first, second, mean = map(read_weights, (*files, output))
    for name, value in mean.items():
        np.testing.assert_allclose(value, (first[name] + second[name]) / 2, atol=1e-6)
    copy = shutil.copytree(model, tmp_path / "model")
    run("average", "--model", copy, "--last", 2)
    for name, value in read_weights(copy / "model.weights.h5").items():
        np.testing.assert_array_equal(value, mean[name])


@pytest.mark.slow
def test_the_export_answers_like_translate_in_a_process_of_its_own(run, data, model, tmp_path):
    saved_model = tmp_path / "saved_model"
    run("export", "--model", model, "--output", saved_model, "--beam-size", 2)
    sentence = (data / "test.en").read_text().splitlines()[0]
    source = tmp_path / "source.txt"
    source.write_text(sentence + "\n")
    expected = run("translate", "--model", model, "--input", source, "--beam-size", 2)
    code = (
        "import sys, tensorflow as tf, tensorflow_text\n"
        "model = tf.saved_model.load(sys.argv[1])\n"
        "answer = model.signatures['serving_default'](text=tf.constant([sys.argv[2]]))\n"
        "sys.stdout.buffer.write(answer['translation'][0].numpy())\n"
        "sys.exit(int('keras_transformer' in sys.modules))\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", code, saved_model, sentence], capture_output=True, check=True
    )
    assert process.stdout.decode() == expected.rstrip("\n")


def start(arguments, **options):
    """Starts the command line as a process of its own."""
    command = [sys.executable, "-m", "keras_transformer.cli", *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, **options)


@pytest.fixture
def evaluation(data):
    """A command that prints, and imports no backend."""
    return ["evaluate", "--hypothesis", data / "test.de", "--reference", data / "test.de"]


def test_a_reader_that_leaves_ends_the_command_quietly(evaluation):
    process = start(evaluation, stdout=subprocess.PIPE)
    process.stdout.close()
    errors = process.stderr.read().decode()
    assert process.wait() == 141
    assert "Traceback" not in errors and "BrokenPipe" not in errors


@pytest.mark.slow
def test_a_full_disk_is_one_line(evaluation):
    with open("/dev/full", "w") as full:
        process = start(evaluation, stdout=full)
        errors = process.stderr.read().decode()
    assert process.wait() == 2
    assert errors.splitlines()[-1] == "keras-transformer evaluate: error: No space left on device"
    assert "Traceback" not in errors


@pytest.mark.slow
@pytest.mark.parametrize("number, status", [(signal.SIGKILL, -9), (signal.SIGINT, 130)])
def test_training_that_is_killed_goes_on_from_its_last_checkpoint(data, tmp_path, number, status):
    """History and weights end up as those of a run that nobody disturbed."""
    from keras_transformer.models.weight_files import read_weights

    killed, whole = tmp_path / "killed", tmp_path / "whole"
    more = ("--max-steps", "40", "--evaluate-every", "4", "--checkpoint-every", "4")
    process = start(train_arguments(data, killed, *more))
    checkpoints = killed / "checkpoints"
    deadline = time.monotonic() + 300
    while len(list(checkpoints.glob("step-*.weights.h5"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(number)
    errors = process.stderr.read().decode()
    assert process.wait() == status
    assert "Traceback" not in errors
    reached = (killed / "history.csv").read_text().splitlines()
    assert 1 < len(reached) < 10
    for output in (killed, whole):
        assert main(train_arguments(data, output, *more)) == 0
    history = [(path / "history.csv").read_text().splitlines() for path in (killed, whole)]
    assert [row.split(",")[0] for row in history[0]] == [row.split(",")[0] for row in history[1]]
    first, second = (read_weights(path / "model.weights.h5") for path in (killed, whole))
    for name, value in second.items():
        np.testing.assert_allclose(first[name], value, atol=1e-5)
    assert not [name for name in os.listdir(killed) if name.startswith(".writing")]
