"""Vocabularies come from files, lines or corpora, and a wrong size is explained with a number."""

import gzip
import pathlib
import re

import pytest

from keras_transformer.data import PairsCorpus, train_sentencepiece
from keras_transformer.errors import UserError

LINES = [f"{word} {other}" for word in ("red", "blue", "big") for other in ("house", "door", "car")]


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
def test_size_and_every_character_and_byte_are_as_asked(model_type):
    tokenizer = train_sentencepiece([*LINES, "ñ 好"], 276, model_type)
    assert tokenizer.vocab_size == 276
    assert tokenizer.model_type == model_type
    pieces = tokenizer.pieces(range(276))
    assert pieces[:5] == ["<pad>", "<unk>", "<s>", "</s>", "<0x00>"]
    assert {"ñ", "好"} <= set(pieces)
    assert sum(bool(re.fullmatch("<0x[0-9A-F]{2}>", piece)) for piece in pieces) == 256


def test_files_lines_and_corpora_give_the_same_vocabulary(tmp_path):
    plain, packed = tmp_path / "a.txt", tmp_path / "b.txt.gz"
    plain.write_text("\n".join(LINES[:4]) + "\n")
    packed.write_bytes(gzip.compress(("\n".join(LINES[4:]) + "\n").encode()))
    expected = train_sentencepiece(LINES, 285).model
    assert train_sentencepiece(iter(LINES), 285).model == expected
    assert train_sentencepiece([plain, packed], 285).model == expected
    corpus = PairsCorpus(list(zip(LINES[::2], LINES[1::2], strict=False)))
    assert train_sentencepiece(corpus, 285).model == train_sentencepiece(LINES[:8], 285).model
    assert train_sentencepiece(str(plain), 280).model == train_sentencepiece(LINES[:4], 280).model


def test_lines_that_sentencepiece_skips_are_counted(caplog):
    """It counts bytes: 5,462 characters of three bytes are too long."""
    fits, too_long = "好" * 5_461, "坏" * 5_462
    tokenizer = train_sentencepiece([*LINES, fits, too_long, "\ud800" + too_long], 300)
    assert "2 lines of more than 16384 bytes are left out of the text for the vocab" in caplog.text
    kept = [piece for piece in tokenizer.pieces(range(300)) if set(piece) & {"好", "坏"}]
    assert kept and not any("坏" in piece for piece in kept)


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
def test_a_size_that_the_text_cannot_fill_is_answered_with_the_largest_possible(model_type, caplog):
    caplog.set_level("INFO")
    with pytest.raises(UserError, match="at most") as raised:
        train_sentencepiece(LINES, 5000, model_type)
    assert "\n" not in str(raised.value)
    assert str(raised.value).endswith("Received: vocab_size=5000")
    largest = int(re.search(r"at most (\d+) pieces", str(raised.value))[1])
    assert train_sentencepiece(LINES, largest, model_type, allow_fewer=True).vocab_size == largest
    assert not caplog.text
    with pytest.raises(UserError, match=f"at most {largest}"):
        train_sentencepiece(LINES, largest + 1, model_type)
    tokenizer = train_sentencepiece(LINES, 5000, model_type, allow_fewer=True)
    assert f"too small for a vocabulary of 5,000: it has {tokenizer.vocab_size}" in caplog.text
    assert tokenizer.decode(tokenizer.encode(LINES[0])) == LINES[0]


def test_a_size_below_the_characters_is_answered_with_the_smallest_possible():
    with pytest.raises(UserError, match="at least") as raised:
        train_sentencepiece(LINES, 100)
    smallest = int(re.search(r"at least (\d+) pieces", str(raised.value))[1])
    assert train_sentencepiece(LINES, smallest).vocab_size == smallest


@pytest.mark.parametrize("text, size, model_type, error, message", [
    ([], 300, "bpe", UserError, "is empty"),
    (["", "  "], 300, "bpe", UserError, "is empty"),
    (pathlib.Path("nothing"), 300, "bpe", UserError, "not found"),
    (LINES, 300, "wordpiece", ValueError, "model_type='wordpiece'"),
    (LINES, 0, "bpe", ValueError, "vocab_size=0"),
    ([3], 300, "bpe", TypeError, "Received: item=3"),
])  # fmt: skip
def test_empty_text_and_wrong_arguments_are_errors(text, size, model_type, error, message):
    with pytest.raises(error, match=message):
        train_sentencepiece(text, size, model_type)


def test_sampling_is_seeded_and_takes_every_line_with_the_same_chance():
    from keras_transformer.data.lines import sample_lines

    lines = [str(number) for number in range(100)]
    assert sample_lines(lines, 100, 0) == lines
    assert sample_lines(lines, 30, 1) == sample_lines(iter(lines), 30, 1)
    assert sample_lines(lines, 30, 1) != sample_lines(lines, 30, 2)
    counts = dict.fromkeys(lines, 0)
    for seed in range(2000):
        for line in sample_lines(lines, 30, seed):
            counts[line] += 1
    # Binomial(2000, 0.3): mean 600, standard deviation 20.5.
    assert 500 < min(counts.values()) and max(counts.values()) < 700
