"""A prepared corpus is the encoded text again, trains to the same weights, and damage is named."""

import json
import zlib

import numpy as np
import pytest

from keras_transformer.data import (
    EncodedCorpus,
    MappedTokenizer,
    PairsCorpus,
    PreparedCorpus,
    SubwordTokenizer,
    prepare_corpus,
)
from keras_transformer.errors import UserError
from tests.tiny_translator import tiny_tokenizer

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
    with pytest.raises(UserError, match="No sentence pair is left of 300"):
        prepared.read("train").up_to(1)


def test_the_validation_text_comes_back_to_the_character(prepared):
    assert list(prepared.valid_text) == [("a\u2028 b\n", 'c "'), ("d", "e")]
    assert len(prepared.read("valid")) == 2
    assert prepared.target_tokenizer is None


def test_arrays_stay_on_the_disk_and_can_be_read_with_numpy_alone(prepared):
    """As the documentation says: no code of this library."""
    encoded = prepared.read("train")
    names = "source_ids", "source_offsets", "target_ids", "target_offsets"
    for name, array in zip(names, encoded.arrays(), strict=True):
        np.testing.assert_array_equal(np.load(prepared.directory / f"train/{name}.npy"), array)
        assert isinstance(array if isinstance(array, np.memmap) else array.base, np.memmap)


def test_arrays_reach_tensorflow_without_a_copy(prepared):
    """Otherwise they would be in memory after all."""
    from keras_transformer.data.token_batches import shared_tensor

    for array in prepared.read().arrays():
        tensor = shared_tensor(array)
        assert np.shares_memory(np.asarray(memoryview(tensor)), array)


def test_dropout_of_merges_needs_the_text(prepared):
    from keras_transformer.training import TrainingSettings, train

    with pytest.raises(UserError, match="`bpe_dropout` needs text to encode in every epoch"):
        train(
            prepared.directory / "model",
            prepared.read(),
            settings=TrainingSettings(preset="tiny", bpe_dropout=0.1),
            source_tokenizer=LETTERS,
        )


@pytest.mark.parametrize(("name", "old", "new", "message"), [
    ("train/target_ids.npy", None, None, "target_ids.npy' is missing"),
    ("train/target_ids.npy", None, "short", "target_ids.npy' is missing, or was cut or changed"),
    ("prepared.json", None, None, "not a prepared corpus: it has no"),
    ("prepared.json", None, "{", "prepared.json' is damaged"),
    ("prepared.json", '"pairs"', '"pears"', "prepared.json' is damaged"),
    ("prepared.json", '"pairs": 2', '"pairs": 7', "do not have the number of pairs and tokens"),
    ("prepared.json", '"target_ids"', '"../ids"', "prepared.json' is damaged: an array has a wro"),
    ("prepared.json", '"valid": {', '"../x": {', "prepared.json' is damaged: other splits are"),
    ("prepared.json", '"tokenizer.txt"', '"../x.txt"', "prepared.json' is damaged: other files"),
    ("prepared.json", '"format": 2', '"format": 1', "has format 1, this version reads 2: prepare"),
    ("tokenizer.txt", "\na\nb\n", "\nb\na\n", "tokenizer.txt' is not the file that was written"),
    ("tokenizer.txt", None, None, "tokenizer.txt' is not the file that"),
    ("valid.jsonl", '"d"', '"f"', "valid.jsonl' is not the file that"),
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


def test_a_split_that_is_missing_is_named(tmp_path):
    alone = prepare_corpus(tmp_path / "alone", pairs(20), None, LETTERS)
    with pytest.raises(UserError, match="has no 'valid' text"):
        alone.read("valid")


def test_an_earlier_one_is_replaced_whole_and_nothing_else_is(prepared, tmp_path):
    prepare_corpus(prepared.directory, pairs(20), None, tiny_tokenizer())
    names = {path.name for path in prepared.directory.iterdir()}
    assert names == {"prepared.json", "tokenizer.model", "train"}
    (prepared.directory / "train-00000-of-00001.tfrecord").touch()  # as version 1 wrote them
    prepare_corpus(prepared.directory, pairs(20), None, LETTERS)
    (prepared.directory / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="prepared corpus without other files. .* with 'notes.txt'"):
        prepare_corpus(prepared.directory, pairs(20), None, LETTERS)
    (prepared.directory / "notes.txt").unlink()
    (prepared.directory / "valid.jsonl").mkdir()  # a folder of anything is no part of a corpus
    (prepared.directory / "valid.jsonl" / "tokenizer.txt").touch()
    with pytest.raises(UserError, match="with 'valid.jsonl/tokenizer.txt'"):
        prepare_corpus(prepared.directory, pairs(20), None, LETTERS)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="must be a folder but .* is a file"):
        prepare_corpus(tmp_path / "file", pairs(20), None, LETTERS)


def test_every_kind_of_tokenizer_is_stored_and_may_be_replaced(tmp_path):
    pieces = tiny_tokenizer().pieces(range(4, tiny_tokenizer().vocab_size))
    tokenizer = MappedTokenizer(tiny_tokenizer().model, pieces)
    for tokenizers in ((tokenizer,), (tokenizer, LETTERS), (LETTERS, tokenizer)):
        prepared = prepare_corpus(tmp_path, pairs(20), None, *tokenizers)
        assert type(prepared.source_tokenizer) is type(tokenizers[0])
    expected = EncodedCorpus.from_corpus(pairs(20), *tokenizers)
    assert prepared.read().target_ids.tolist() == expected.target_ids.tolist()


def test_what_fails_half_way_leaves_the_earlier_one(prepared):
    def broken():
        yield from pairs(20)
        raise UserError("line 21 is broken")

    before = prepared.read()
    with pytest.raises(UserError, match="line 21 is broken"):
        prepare_corpus(prepared.directory, broken(), None, LETTERS)
    assert_equal(PreparedCorpus.load(prepared.directory).read(), before)
    assert [path.name for path in prepared.directory.parent.iterdir()] == ["prepared"]


def test_sentences_longer_than_the_format_holds_are_refused(tmp_path):
    with pytest.raises(ValueError, match="max_length must be from 1 to 65535"):
        prepare_corpus(tmp_path / "p", pairs(20), None, LETTERS, max_length=2**16)
    longest = PairsCorpus([("a " * (2**16 - 2), "b")])
    loaded = prepare_corpus(tmp_path / "p", longest, None, LETTERS, max_length=2**16 - 1)
    assert loaded.read().source_lengths.tolist() == [2**16 - 1]
