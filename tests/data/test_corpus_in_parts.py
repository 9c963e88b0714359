"""Several processes that prepare a corpus together write the bytes of one."""

import itertools
import logging

import numpy as np
import pytest

from keras_transformer.data import (
    MixedCorpus,
    PairsCorpus,
    SubwordTokenizer,
    prepare_corpus,
    train_sentencepiece,
)
from keras_transformer.data import preparation as module
from keras_transformer.errors import UserError
from tests.data.test_prepared_corpus import pairs

LETTERS = SubwordTokenizer(list("abcdefgh"))
LINES = [text for pair in pairs(200) for text in pair]
TAGGED, OTHER = (
    train_sentencepiece(LINES, vocab_size=size, allow_fewer=True, symbols=["<x>"])
    for size in (280, 270)
)
VALID = PairsCorpus([("a\u2028 b\n", 'c "'), ("d", "e"), ("", "f")])


def mixed(weight=2):
    corpora = {"first": pairs(500), "second": pairs(90, seed=1), "third": pairs(410, seed=2)}
    weights = {"first": 1, "second": weight, "third": 0.5}
    return MixedCorpus(corpora, weights, tags={"second": "<x>"})


CORPORA = {"plain": (pairs(1000), None, LETTERS), "mixed": (mixed(), VALID, TAGGED, LETTERS)}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr("keras_transformer.data.encoded_corpus._CHUNK", 70)
    monkeypatch.setattr(module, "_PAIRS_AT_ONCE", 50)


def content(directory):
    assert [path.name for path in directory.parent.iterdir()] == [directory.name]
    files = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def expected_of(name, folder):
    prepare_corpus(folder / "one" / "corpus", *CORPORA[name], max_length=10)
    return content(folder / "one" / "corpus")


@pytest.mark.parametrize("name", CORPORA)
def test_the_files_are_those_of_one_process_in_any_order(name, tmp_path):
    expected = expected_of(name, tmp_path)
    orders = [*itertools.permutations([(1, 3), (2, 3), (3, 3)]), [(1, 1)]]
    # More parts than pairs of a corpus; parts of another division, which are not used.
    orders += [[(i, 200) for i in range(200, 0, -1)], [(1, 3), (2, 2), (1, 2)]]
    for number, order in enumerate(orders):
        directory = tmp_path / str(number) / "corpus"
        for part in order[:-1]:
            assert prepare_corpus(directory, *CORPORA[name], max_length=10, part=part) is None
            assert not directory.exists()
        prepared = prepare_corpus(directory, *CORPORA[name], max_length=10, part=order[-1])
        assert prepared.directory.resolve() == directory.resolve()
        assert content(directory) == expected


def test_a_part_is_complete_or_encoded_again(tmp_path, monkeypatch):
    directory, encode, encoded = tmp_path / "c", module.encode_blocks, []

    def encode_until(limit):
        def counted(*arguments):
            for block in encode(*arguments):
                if len(encoded) == limit:
                    raise KeyboardInterrupt
                encoded.append(1)
                yield block

        monkeypatch.setattr(module, "encode_blocks", counted)

    encode_until(4)
    with pytest.raises(KeyboardInterrupt):
        prepare_corpus(directory, *CORPORA["mixed"], max_length=10, part=(1, 2))
    encode_until(None)
    for _ in range(2):
        assert prepare_corpus(directory, *CORPORA["mixed"], max_length=10, part=(1, 2)) is None
        assert len(encoded) == 4 + 8, "500 pairs in blocks of 70, once"
    prepare_corpus(directory, *CORPORA["mixed"], max_length=10, part=(2, 2))
    assert content(directory) == expected_of("mixed", tmp_path / "other")


def test_parts_of_other_text_or_options_are_told_and_not_used(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    expected, directory = expected_of("mixed", tmp_path), tmp_path / "2" / "c"
    train, valid, *tokenizers = CORPORA["mixed"]
    others = [
        {"max_length": 9}, {"source_tokenizer": OTHER},
        {"target_tokenizer": None}, {"train_corpus": mixed(weight=3)},
        {"valid_corpus": PairsCorpus([*VALID][:2])}, {"valid_corpus": None},
        {"train_corpus": MixedCorpus(train.corpora, train.weights, {"first": "<x>"})},
    ]  # fmt: skip
    names = ("train_corpus", "valid_corpus", "source_tokenizer", "target_tokenizer")
    arguments = dict(zip(names, CORPORA["mixed"], strict=True), max_length=10)
    assert prepare_corpus(directory, **arguments, part=(2, 2)) is None
    for other in others:
        caplog.clear()
        assert prepare_corpus(directory, **(arguments | other), part=(1, 2)) is None
        warning, note = caplog.messages[-2:]
        assert "parts of other text, vocabulary or options, which are not used: 2-of-2" in warning
        assert "Part 1 of 2 is complete; parts that are missing: 1" in note
    prepare_corpus(directory, **arguments, part=(1, 2))
    assert content(directory) == expected


@pytest.mark.parametrize("part", [(0, 3), (4, 3), (1, 0), (-1, -1)])
def test_a_part_is_in_range(part, tmp_path):
    with pytest.raises(ValueError, match="1 <= i <= p. Received: part="):
        prepare_corpus(tmp_path, *CORPORA["plain"], part=part)


def test_tags_that_the_vocabulary_lacks_are_refused_first(tmp_path):
    with pytest.raises(UserError, match="Received: the tag '<x>'"):
        prepare_corpus(tmp_path, mixed(), None, LETTERS, part=(1, 2))
    assert np.size([*tmp_path.glob("*")]) == 0
