"""`prepare` and `train --prepared`: the model of the text, mistakes in one line."""

import json

import numpy as np
import pytest

from keras_transformer.cli.application import build_parser
from keras_transformer.cli.settings import resolve
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


def weights(run, *arguments, output):
    outcome = run("train", *arguments, *TINY, "--output", output)
    assert outcome.status == 0, outcome.errors
    return read_weights(output / "model.weights.h5")


def test_a_vocabulary_of_no_size_is_that_of_train(run, files, tmp_path):
    outcome = run("prepare", *options(files), "--output", tmp_path / "prepared")
    assert outcome.status == 0, outcome.errors
    assert "Learning a vocabulary of 1,000 bpe pieces" in outcome.errors
    assert "too small for a vocabulary of 1,000" in outcome.errors


@pytest.mark.tensorflow_only("`train` reads its data with tf.data")
@pytest.mark.slow
def test_the_model_is_that_of_the_text(run, files, vocabulary, tmp_path):
    outcome = run("prepare", *options(files), "--vocabulary", vocabulary, "--output",
                  tmp_path / "prepared")  # fmt: skip
    assert outcome.status == 0, outcome.errors
    assert "100 training pairs" in outcome.errors and "20 validation pairs" in outcome.errors
    expected = weights(
        run, *options(files), "--vocabulary", vocabulary, output=tmp_path / "from-text"
    )
    for path in files.values():
        path.unlink()
    found = weights(run, "--prepared", tmp_path / "prepared", output=tmp_path / "from-ids")
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.tensorflow_only("`train` reads its data with tf.data")
@pytest.mark.slow
def test_a_vocabulary_for_each_language_and_the_longest_sentence_are_kept(run, files, tmp_path):
    prepared, model = tmp_path / "prepared", tmp_path / "model"
    outcome = run("prepare", *options(files), "--vocab-size", 300, "--no-shared-vocabulary",
                  "--max-length", 30, "--output", prepared)  # fmt: skip
    assert outcome.status == 0, outcome.errors
    outcome = run("train", "--prepared", prepared, *TINY, "--output", model)
    assert outcome.status == 0, outcome.errors
    for name in ("source_tokenizer.model", "target_tokenizer.model"):
        assert (model / name).read_bytes() == (prepared / name).read_bytes()
    settings = json.loads((model / "training.json").read_text())
    assert settings["settings"]["recipe"]["max_length"] == 30
    assert settings["settings"]["shared_vocabulary"] is False


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"--source": "missing.en"}, "File not found: 'missing.en'"),
        ({"--target": None}, "--source also needs --target"),
        ({"--target": "valid.en"}, "must have the same number of lines"),
        ({"--tsv": "pairs.tsv"}, "--valid-source, --valid-target, --tsv"),
        ({"--output": "valid.en"}, "must be a directory. Received a file"),
        ({"--output": "."}, "is not a prepared corpus that can be replaced"),
        ({"--max-length": 70_000}, "--max-length must be from 1 to 65535"),
        ({"--max-length": 1}, "No sentence pair is left of 100"),
    ],
)
def test_a_mistake_is_one_line(run, files, vocabulary, tmp_path, monkeypatch, change, message):
    monkeypatch.chdir(tmp_path)
    given = {**files, "--vocabulary": vocabulary, "--output": "prepared", **change}
    given = {flag: value for flag, value in given.items() if value is not None}
    outcome = run("prepare", *options(given))
    assert (outcome.status, outcome.output) == (2, "")
    assert message in outcome.errors.splitlines()[-1]
    assert not (tmp_path / "prepared").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max-length", 500], "of more than 256 subwords. Received: --max-length 500"),
        (["--vocab-size", 500], "Received: --prepared and --vocab-size"),
        (["--bpe-dropout", 0.1], "Received: --prepared and --bpe-dropout"),
        (["--source", "train.en"], "Received: --source, --prepared"),
    ],
)
def test_train_says_what_does_not_go_with_it(run, files, vocabulary, tmp_path, arguments, message):
    prepared = tmp_path / "prepared"
    run("prepare", *options(files), "--vocabulary", vocabulary, "--output", prepared)
    outcome = run("train", "--prepared", prepared, "--output", tmp_path / "model", *arguments)
    assert outcome.status == 2
    assert message in outcome.errors
    assert outcome.errors.count("\n") == 1


def test_a_recipe_takes_the_vocabulary_of_the_corpus(run, files, vocabulary, tmp_path, unmeasured):
    prepared, arguments = tmp_path / "prepared", ["--experiment", "wmt14-en-de-base", "--prepared"]
    run("prepare", *options(files), "--vocabulary", vocabulary, "--output", prepared)
    outcome = run("train", *arguments, prepared, "--plan")
    assert outcome.status == 0, outcome.errors
    size = tiny_tokenizer().vocab_size
    assert f"vocabulary          {size} bpe pieces for both languages" in outcome.output
    values = resolve(build_parser("train").parse_args(["train", *arguments, str(prepared)]))
    corpora = get_task("translation").open_corpora("prepared", values)
    assert corpora.source_tokenizer.vocab_size == size and len(corpora.train) == 100


def test_train_names_what_is_not_prepared(run, tmp_path):
    outcome = run("train", "--prepared", tmp_path, "--output", tmp_path / "model")
    assert outcome.status == 2
    assert "is not a prepared corpus: it has no prepared.json" in outcome.errors
    assert outcome.errors.count("\n") == 1
