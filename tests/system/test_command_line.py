"""The command line end to end, on a few dozen generated pairs: every command on one small model."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest

from keras_transformer.cli import main
from keras_transformer.models.weight_files import read_weights
from keras_transformer.quickstart import number_corpus
from tests.closeness import assert_all_close
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
    words = f"vocab --input {folder}/train.en {folder}/train.de --size 400"
    assert main([*words.split(), "--output", f"{folder}/vocab.model"]) == 0
    return folder


TRAIN = (
    "train --source {data}/train.en --target {data}/train.de --valid-source {data}/valid.en "
    "--valid-target {data}/valid.de --vocabulary {data}/vocab.model --preset tiny --d-model 32 "
    "--num-encoder-layers 1 --num-decoder-layers 1 --intermediate-dim 64 --num-heads 2 "
    "--tokens-per-batch 1024 --warmup-steps 10 --checkpoint-every 2 --evaluate-every 100 "
    "--bleu-every 0 --average-checkpoints 2 --streams 1 --output {output}"
)


def train_arguments(data, output, *more):
    return [*TRAIN.format(data=data, output=output).split(), *more]


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


def test_translate_keeps_line_n_on_line_n(succeed, data, model, tmp_path):
    lines = (data / "test.en").read_text().splitlines()
    source = tmp_path / "source.txt"
    source.write_text("\n".join([lines[0], "", lines[1], lines[0]]) + "\n")
    output = tmp_path / "output.txt"
    printed = succeed("translate", "--model", model, "--input", source, "--chunk-size", 2).output
    succeed("translate", "--model", model, "--input", source, "--output", output)
    first, empty, _, last, end = printed.split("\n")
    assert first == last and empty == end == ""
    assert output.read_text() == printed


def test_evaluate_scores_the_model_and_its_translation_alike(succeed, data, model, tmp_path):
    reference, output, report = data / "test.de", tmp_path / "out.de", tmp_path / "scores.json"
    printed = succeed("evaluate", "--model", model, "--source", data / "test.en", "--reference",
                      reference, "--output", output, "--json", report).output  # fmt: skip
    again = succeed("evaluate", "--hypothesis", output, "--reference", reference).output
    assert printed == again
    assert "tok:13a" in printed and "chrF" in printed
    content = json.loads(report.read_text())
    assert content["num_lines"] == 6
    assert content["search"]["beam_size"] == 5  # the preset's
    assert {score["name"] for score in content["scores"]} >= {"BLEU"}


def test_average_is_the_mean_of_the_checkpoints(succeed, model, tmp_path, monkeypatch):
    files = sorted((model / "checkpoints").glob("step-*.weights.h5"))[-2:]
    output = tmp_path / "mean.weights.h5"
    succeed("average", "--output", output, *files)
    first, second, mean = map(read_weights, (*files, output))
    assert_all_close(mean, {name: (first[name] + second[name]) / 2 for name in mean})
    copy = shutil.copytree(model, tmp_path / "model")
    succeed("average", "--model", copy, "--last", 2)
    for name, value in read_weights(copy / "model.weights.h5").items():
        np.testing.assert_array_equal(value, mean[name])
    # A file of the current folder that is not among those to average.
    monkeypatch.chdir(copy)
    first, *_ = sorted(pathlib.Path("checkpoints").glob("step-*.weights.h5"))
    succeed("average", "--output", first, *files)
    assert_all_close(read_weights(first), mean)


def start(arguments, **options):
    """Starts the command line as a process of its own."""
    command = [sys.executable, "-m", "keras_transformer.cli", *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, **options)


def test_a_reader_that_leaves_ends_the_command_quietly(data):
    evaluation = ["evaluate", "--hypothesis", data / "test.de", "--reference", data / "test.de"]
    process = start(evaluation, stdout=subprocess.PIPE)
    process.stdout.close()
    errors = process.stderr.read().decode()
    assert process.wait() == 141
    assert "Traceback" not in errors and "BrokenPipe" not in errors


@pytest.mark.slow
def test_training_that_is_killed_goes_on_from_its_last_checkpoint(data, tmp_path):
    """History and weights end up as those of a run that nobody disturbed."""
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    more = ("--max-steps", "40", "--evaluate-every", "4", "--checkpoint-every", "4")
    process = start(train_arguments(data, killed, *more))
    checkpoints = killed / "checkpoints"
    deadline = time.monotonic() + 300
    while len(list(checkpoints.glob("step-*.weights.h5"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    process.kill()
    process.communicate()
    reached = (killed / "history.csv").read_text().splitlines()
    assert 1 < len(reached) < 10
    for output in (killed, whole):
        assert main(train_arguments(data, output, *more)) == 0
    history = [(path / "history.csv").read_text() for path in (killed, whole)]
    steps = [[row.split(",")[0] for row in rows.splitlines()] for rows in history]
    assert steps[0] == steps[1]
    first, second = (read_weights(path / "model.weights.h5") for path in (killed, whole))
    assert_all_close(first, second)
    assert not [name for name in os.listdir(killed) if name.startswith(".writing")]
