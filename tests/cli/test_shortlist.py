"""`shortlist`, and `--shortlist` of the commands that translate."""

import pytest

from keras_transformer.data import SubwordTokenizer
from keras_transformer.decoding import GreedySearch
from keras_transformer.inference import Shortlist, Translator
from tests.loaded_once import load_once
from tests.tiny_translator import tiny_model

WORDS = [f"w{number}" for number in range(1400)]
LINES = [" ".join(f"w{300 + 23 * n + 5 * k}" for k in range(4)) for n in range(6)]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    tokenizer = SubwordTokenizer(WORDS)
    model = tiny_model(vocab_size=tokenizer.vocab_size)
    translator = Translator(model, tokenizer, search=GreedySearch(), extra_length=8)
    return translator.save(tmp_path_factory.mktemp("models") / "model")


def test_the_commands_learn_and_use_a_shortlist(run, directory, text, monkeypatch):
    load_once(monkeypatch, directory)
    lines = text("source.txt", LINES)
    options = ["--model", directory, "--input", lines]
    missing = run("translate", *options, "--shortlist")
    assert missing.status == 2 and "shortlist.npz is missing" in missing.errors
    pairs = ["--source", lines, "--target", text("target.txt", LINES[::-1])]
    learned = run("shortlist", "--model", directory, *pairs, "--candidates", 7, "--frequent", 9)
    assert learned.status == 0, learned.errors
    assert learned.errors.splitlines()[-1] == f"wrote {directory}/shortlist.npz"
    translator = Translator.load(directory)
    shortlist = Shortlist.load(directory, translator.tokenizers)
    assert shortlist.candidates.shape == (1404, 8) and len(shortlist.frequent) == 4 + 9

    whole = translator.translate(LINES)
    translator.shortlist = shortlist
    expected = translator.translate(LINES)
    translator.shortlist = None
    short = run("translate", *options, "--shortlist")
    assert short.output.splitlines() == expected != whole
    scored = ["--source", lines, "--reference", text("reference.txt", expected)]
    assert "100.00" in run("evaluate", "--model", directory, *scored, "--shortlist").output


@pytest.mark.parametrize(
    "arguments, reason",
    [
        (["--target", "short.txt"], "Parallel files must have the same number of lines"),
        (["--target", "nowhere.txt"], "nowhere.txt"),
        (["--target", "source.txt", "--candidates", "0"], "--candidates"),
    ],
)
def test_bad_input_is_one_line(run, directory, text, arguments, reason, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text("source.txt", LINES), text("short.txt", LINES[:3])
    outcome = run("shortlist", "--model", directory, "--source", "source.txt", *arguments)
    assert outcome.status == 2 and reason in outcome.errors
    assert len(outcome.errors.splitlines()) == 1


def test_a_parser_has_no_shortlist(run, parser_directory, tmp_path):
    options = ["--output", tmp_path / "out", "--shortlist"]
    outcome = run("export", "--model", parser_directory, *options)
    assert outcome.status == 2
    message = "--shortlist is for a model for translation. Received: a model for parsing"
    assert message in outcome.errors
