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


def test_the_commands_learn_and_use_a_shortlist(succeed, refuse, directory, text, monkeypatch):
    load_once(monkeypatch, directory)
    lines = text("source.txt", LINES)
    options = ["--model", directory, "--input", lines]
    assert "shortlist.npz is missing" in refuse("translate", *options, "--shortlist")
    pairs = ["--source", lines, "--target", text("target.txt", LINES[::-1])]
    settings = ["--candidates", 7, "--frequent", 9]
    learned = succeed("shortlist", "--model", directory, *pairs, *settings)
    assert learned.errors.splitlines()[-1] == f"wrote {directory}/shortlist.npz"
    translator = Translator.load(directory)
    shortlist = Shortlist.load(directory, translator.tokenizers)
    assert shortlist.candidates.shape == (1404, 8) and len(shortlist.frequent) == 4 + 9

    whole = translator.translate(LINES)
    translator.shortlist = shortlist
    expected = translator.translate(LINES)
    translator.shortlist = None
    short = succeed("translate", *options, "--shortlist")
    assert short.output.splitlines() == expected != whole
    scored = ["--source", lines, "--reference", text("reference.txt", expected)]
    assert "100.00" in succeed("evaluate", "--model", directory, *scored, "--shortlist").output


def test_a_parser_has_no_shortlist(refuse, parser_directory, tmp_path):
    line = refuse("export", "--model", parser_directory, "--output", tmp_path / "o", "--shortlist")
    assert "--shortlist is for a model for translation. Received: a model for parsing" in line
