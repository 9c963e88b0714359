"""`prepare` and `train --prepared`: the model of the text, mistakes in one line."""

import json

import numpy as np
import pytest

from keras_transformer.cli.application import build_parser
from keras_transformer.cli.settings import resolve
from keras_transformer.cli.task_commands import commands_of
from keras_transformer.inference.tasks import get_task
from keras_transformer.models.weight_files import read_weights
from tests.tiny_translator import sentence, tiny_tokenizer

LINES = [sentence(2 + seed % 6, seed) for seed in range(120)]
TINY = [
    "--preset", "tiny", "--d-model", 16, "--intermediate-dim", 32, "--num-heads", 2,
    "--num-encoder-layers", 1, "--num-decoder-layers", 1, "--tokens-per-batch", 200,
    "--max-steps", 3, "--evaluate-every", 3, "--deterministic",
]  # fmt: skip


@pytest.fixture
def files(text):
    return {
        "--source": text("train.en", LINES[:100]),
        "--target": text("train.de", LINES[1:101]),
        "--valid-source": text("valid.en", LINES[100:]),
        "--valid-target": text("valid.de", LINES[100:]),
    }


@pytest.fixture
def vocabulary(tmp_path):
    return tiny_tokenizer().save(tmp_path, "vocab")


def options(files):
    return [part for item in files.items() for part in item]


def test_parts_are_joined_by_the_last_one(succeed, files, vocabulary, tmp_path):
    command = ("prepare", *options(files), "--vocabulary", vocabulary, "--output")
    succeed(*command, tmp_path / "whole")
    outcome = succeed(*command, tmp_path / "parts", "--part", "2/2")
    assert "Part 2 of 2 is complete; parts that are missing: 1." in outcome.errors
    assert "wrote" not in outcome.errors and not (tmp_path / "parts").exists()
    assert "100 training pairs" in succeed(*command, tmp_path / "parts", "--part", "1/2").errors
    whole, joined = (
        {p.relative_to(tmp_path / name): p.read_bytes() for p in (tmp_path / name).rglob("*.*")}
        for name in ("whole", "parts")
    )
    assert len(whole) == 11 and joined == whole


def test_a_vocabulary_of_no_size_is_that_of_train(succeed, files, tmp_path):
    outcome = succeed("prepare", *options(files), "--output", tmp_path / "prepared")
    assert "Learning a vocabulary of 1,000 bpe pieces" in outcome.errors
    assert "too small for a vocabulary of 1,000" in outcome.errors


@pytest.mark.tensorflow_only("`train` reads its data with tf.data")
@pytest.mark.slow
def test_the_model_is_that_of_the_text(succeed, files, vocabulary, tmp_path):
    names = ("prepared", "from-text", "from-ids")
    prepared, *outputs = (tmp_path / name for name in names)
    text = (*options(files), "--vocabulary", vocabulary)
    outcome = succeed("prepare", *text, "--output", prepared)
    assert "100 training pairs" in outcome.errors and "20 validation pairs" in outcome.errors
    succeed("train", *text, *TINY, "--output", outputs[0])
    for path in files.values():
        path.unlink()
    succeed("train", "--prepared", prepared, *TINY, "--output", outputs[1])
    expected, found = (read_weights(output / "model.weights.h5") for output in outputs)
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.tensorflow_only("`train` reads its data with tf.data")
@pytest.mark.slow
def test_a_vocabulary_for_each_language_and_the_longest_sentence_are_kept(succeed, files, tmp_path):
    prepared, model = tmp_path / "prepared", tmp_path / "model"
    succeed("prepare", *options(files), "--vocab-size", 300, "--no-shared-vocabulary",
            "--max-length", 30, "--output", prepared)  # fmt: skip
    succeed("train", "--prepared", prepared, *TINY, "--output", model)
    for name in ("source_tokenizer.model", "target_tokenizer.model"):
        assert (model / name).read_bytes() == (prepared / name).read_bytes()
    settings = json.loads((model / "training.json").read_text())["settings"]
    assert settings["recipe"]["max_length"] == 30
    assert settings["shared_vocabulary"] is False


@pytest.fixture
def prepared(succeed, files, vocabulary, tmp_path):
    output = tmp_path / "prepared"
    succeed("prepare", *options(files), "--vocabulary", vocabulary, "--output", output)
    return output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max-length", 500], "of more than 256 subwords. Received: --max-length 500"),
        (["--vocab-size", 500], "Received: --prepared and --vocab-size"),
        (["--bpe-dropout", 0.1], "Received: --prepared and --bpe-dropout"),
        (["--source", "train.en"], "Received: --source, --prepared"),
    ],
)
def test_train_says_what_does_not_go_with_it(refuse, prepared, tmp_path, arguments, message):
    options = ("--prepared", prepared, "--output", tmp_path / "model")
    assert message in refuse("train", *options, *arguments)


def test_a_recipe_takes_the_vocabulary_of_the_corpus(succeed, prepared, unmeasured):
    arguments = ["train", "--experiment", "wmt14-en-de-base", "--prepared", str(prepared)]
    size = tiny_tokenizer().vocab_size
    output = succeed(*arguments, "--plan").output
    assert f"vocabulary          {size} bpe pieces for both languages" in output
    values = resolve(build_parser("train").parse_args(arguments))
    corpora = commands_of(get_task("translation")).open_corpora("prepared", values)
    assert corpora.source_tokenizer.vocab_size == size and len(corpora.train) == 100
