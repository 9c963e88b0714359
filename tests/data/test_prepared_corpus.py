"""A prepared corpus is the encoded text again, however many processes wrote it; damage is named."""

import json
import logging
import zlib

import numpy as np
import pytest

from keras_transformer.data import (
    EncodedCorpus,
    MixedCorpus,
    PairsCorpus,
    PreparedCorpus,
    SubwordTokenizer,
    prepare_corpus,
    train_sentencepiece,
)
from keras_transformer.data.batch_arrays import shared_tensor
from keras_transformer.errors import UserError
from keras_transformer.training import TrainingSettings, train

LETTERS = SubwordTokenizer(list("abcdefgh"))


def pairs(number, seed=0):
    """Random pairs, among them some that are empty or too long."""
    generator = np.random.default_rng(seed)
    lengths = generator.integers(0, 12, [number, 2])
    texts = [" ".join(generator.choice(list("abcdefgh"), length)) for length in lengths.flat]
    return PairsCorpus(list(zip(texts[::2], texts[1::2], strict=True)))


def assert_equal(first, second):
    for left, right in zip(first.arrays(), second.arrays(), strict=True):
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(left, right)
    assert first.num_dropped_long == second.num_dropped_long
    assert first.num_dropped_empty == second.num_dropped_empty


@pytest.fixture
def prepared(tmp_path):
    valid = PairsCorpus([("a\u2028 b\n", 'c "'), ("d", "e")])
    return prepare_corpus(tmp_path / "prepared", pairs(300), valid, LETTERS, max_length=10)


def test_many_blocks_are_the_corpus_encoded_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr("keras_transformer.data.encoded_corpus._CHUNK", 70)
    corpus, wide = pairs(1000), SubwordTokenizer([*"hgfedcba", *map(str, range(2**16))])
    seen = []
    prepare_corpus(tmp_path / "p", corpus, None, LETTERS, wide, 10, progress=seen.append)
    monkeypatch.undo()
    loaded = PreparedCorpus.load(tmp_path / "p")
    assert seen == [*range(70, 1000, 70), 1000]
    expected = EncodedCorpus.from_corpus(corpus, LETTERS, wide, max_length=10)
    assert expected.num_dropped_long and expected.num_dropped_empty
    assert expected.source_ids.dtype == np.uint16 and expected.target_ids.dtype == np.int32
    assert_equal(loaded.read("train"), expected)
    assert (loaded.max_length, loaded.valid_text) == (10, None)
    assert loaded.source_tokenizer.encode("a b") == [4, 5]
    assert loaded.target_tokenizer.encode("h g") == [4, 5]


def test_a_shorter_limit_leaves_out_what_the_text_would_have(prepared):
    expected = EncodedCorpus.from_corpus(pairs(300), LETTERS, max_length=6)
    assert_equal(prepared.read("train").up_to(6), expected)


def test_the_validation_text_comes_back_to_the_character(prepared, tmp_path):
    assert list(prepared.valid_text) == [("a\u2028 b\n", 'c "'), ("d", "e")]
    assert len(prepared.read("valid")) == 2
    assert prepared.target_tokenizer is None
    assert prepare_corpus(tmp_path / "p", pairs(20), None, LETTERS).valid_text is None


def test_arrays_stay_on_the_disk_and_reach_tensorflow_without_a_copy(prepared):
    """They can be read with NumPy alone, as the documentation says."""
    names = "source_ids", "source_offsets", "target_ids", "target_offsets"
    for name, array in zip(names, prepared.read("train").arrays(), strict=True):
        np.testing.assert_array_equal(np.load(prepared.directory / f"train/{name}.npy"), array)
        assert isinstance(array if isinstance(array, np.memmap) else array.base, np.memmap)
        assert np.shares_memory(np.asarray(memoryview(shared_tensor(array))), array)


def test_dropout_of_merges_needs_the_text(prepared):
    with pytest.raises(UserError, match="`bpe_dropout` needs text to encode in every epoch"):
        train(
            prepared.directory / "model",
            prepared.read(),
            settings=TrainingSettings(preset="tiny", bpe_dropout=0.1),
            source_tokenizer=LETTERS,
        )


@pytest.mark.parametrize(("name", "old", "new", "message"), [
    ("train/target_ids.npy", None, None, "target_ids.npy' is missing"),
    ("prepared.json", None, None, "not a prepared corpus: it has no"),
    ("prepared.json", '"pairs": 2', '"pairs": 7', "do not have the number of pairs and tokens"),
    ("prepared.json", '"target_ids"', '"../ids"', "prepared.json' is damaged: an array has a wro"),
    ("prepared.json", '"valid": {', '"../x": {', "prepared.json' is damaged: other splits are"),
    ("prepared.json", '"tokenizer.txt"', '"../x.txt"', "prepared.json' is damaged: other files"),
    ("prepared.json", '"format": 2', '"format": 1', "has format 1, this version reads 2: prepare"),
    ("tokenizer.txt", "\na\nb\n", "\nb\na\n", "tokenizer.txt' is not the file that was written"),
])  # fmt: skip
def test_a_damaged_directory_is_refused_before_it_is_read(prepared, name, old, new, message):
    """A file whose text is replaced, whole or in part, or that is missing."""
    path = prepared.directory / name
    if new is None:
        path.unlink()
    else:
        content = path.read_text(encoding="utf-8") if old else ""
        assert (old or "") in content
        path.write_text(content.replace(old, new, 1) if old else new, encoding="utf-8")
    with pytest.raises(UserError, match=message):
        PreparedCorpus.load(prepared.directory)


def test_a_damaged_byte_is_found_when_the_array_is_read(prepared):
    path = prepared.directory / "train" / "source_ids.npy"
    content = bytearray(path.read_bytes())
    content[-7] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match="source_ids.npy' is damaged: prepare the corpus again"):
        PreparedCorpus.load(prepared.directory).read()


@pytest.mark.parametrize(("name", "values", "message"), [
    ("target_ids", [12], "have ids that are not in the vocabulary"),
    ("source_offsets", [0, 9, 1], "have sentences of other lengths than 2 to 10"),
])  # fmt: skip
def test_values_that_would_harm_a_training_are_found(prepared, name, values, message):
    """Also if the checksum is that of the changed file."""
    path, json_path = prepared.directory / f"train/{name}.npy", prepared.directory / "prepared.json"
    array = np.load(path)
    array[: len(values)] = values
    np.save(path, array)
    description = json.loads(json_path.read_text())
    description["splits"]["train"]["checksums"][name] = zlib.crc32(path.read_bytes())
    json_path.write_text(json.dumps(description))
    with pytest.raises(UserError, match=message):
        PreparedCorpus.load(prepared.directory).read()


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


MIXED = mixed(), VALID, TAGGED, LETTERS


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr("keras_transformer.data.encoded_corpus._CHUNK", 70)
    monkeypatch.setattr("keras_transformer.data.preparation._PAIRS_AT_ONCE", 50)


def expected_in(folder):
    prepare_corpus(folder / "one" / "corpus", *MIXED, max_length=10)
    return content(folder / "one" / "corpus")


def content(directory):
    assert [path.name for path in directory.parent.iterdir()] == [directory.name]
    files = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def test_the_files_are_those_of_one_process_in_any_order(tmp_path, small_blocks):
    expected = expected_in(tmp_path)
    # The last has parts of another division, which are not used.
    for number, order in enumerate([[(1, 1)], [(3, 3), (1, 3), (2, 3)], [(1, 3), (2, 2), (1, 2)]]):
        directory = tmp_path / str(number) / "corpus"
        for part in order[:-1]:
            assert prepare_corpus(directory, *MIXED, max_length=10, part=part) is None
            assert not directory.exists()
        prepared = prepare_corpus(directory, *MIXED, max_length=10, part=order[-1])
        assert prepared.directory.resolve() == directory.resolve()
        assert content(directory) == expected


def test_parts_of_other_text_or_options_are_told_and_not_used(tmp_path, caplog, small_blocks):
    caplog.set_level(logging.INFO)
    expected, directory = expected_in(tmp_path), tmp_path / "2" / "c"
    with pytest.raises(ValueError, match="1 <= i <= p. Received: part="):
        prepare_corpus(directory, *MIXED, part=(4, 3))
    others = {"source_tokenizer": OTHER}, {"train_corpus": mixed(weight=3)}, {"valid_corpus": None}
    names = ("train_corpus", "valid_corpus", "source_tokenizer", "target_tokenizer")
    arguments = dict(zip(names, MIXED, strict=True), max_length=10)
    assert prepare_corpus(directory, **arguments, part=(2, 2)) is None
    for other in others:
        caplog.clear()
        assert prepare_corpus(directory, **(arguments | other), part=(1, 2)) is None
        warning = caplog.messages[-2]
        assert "parts of other text, vocabulary or options, which are not used: 2-of-2" in warning
    prepare_corpus(directory, **arguments, part=(1, 2))
    assert content(directory) == expected


def test_a_folder_with_other_files_is_not_replaced(prepared):
    (prepared.directory / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="prepared corpus without other files. .* with 'notes.txt'"):
        prepare_corpus(prepared.directory, pairs(20), None, LETTERS)
