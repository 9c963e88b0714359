"""A prepared corpus is the encoded text again, trains to the same weights, and damage is named."""

import json
import pathlib
import struct

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
from keras_transformer.data import prepared_corpus as module
from keras_transformer.data.encoded_corpus import encode_blocks
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


def test_many_blocks_and_shards_are_the_corpus_encoded_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr("keras_transformer.data.encoded_corpus._CHUNK", 70)
    monkeypatch.setattr(module, "_BLOCKS_PER_SHARD", 3)
    corpus, wide = pairs(1000), SubwordTokenizer([*"hgfedcba", *map(str, range(2**16))])
    seen = []
    prepare_corpus(tmp_path / "p", corpus, None, LETTERS, wide, 10, progress=seen.append)
    monkeypatch.undo()
    loaded = PreparedCorpus.load(tmp_path / "p")
    assert len(loaded.splits["train"].shards) == 5
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


def test_records_can_be_read_with_tensorflow_alone(prepared):
    """As the documentation says: no code of this library."""
    import tensorflow as tf

    names = [f"{side}_{what}" for side in ("source", "target") for what in ("lengths", "ids")]
    features = {name: tf.io.FixedLenFeature([], tf.string) for name in names}
    (path,) = prepared.directory.glob("train-00000-of-00001.tfrecord")
    (record,) = tf.data.TFRecordDataset(str(path))
    record = tf.io.parse_single_example(record, features)
    arrays = {name: tf.io.decode_raw(value, tf.uint16) for name, value in record.items()}
    rows = tf.RaggedTensor.from_row_lengths(
        tf.cast(arrays["target_ids"], tf.int32), tf.cast(arrays["target_lengths"], tf.int32)
    )
    encoded = prepared.read("train")
    ends = zip(encoded.target_offsets, encoded.target_offsets[1:], strict=False)
    expected = [encoded.target_ids[start:end].tolist() for start, end in ends]
    assert rows.to_list() == expected


def test_dropout_of_merges_needs_the_text(prepared):
    from keras_transformer.training import TrainingSettings, train

    with pytest.raises(UserError, match="`bpe_dropout` needs text to encode in every epoch"):
        train(
            prepared.directory / "model",
            prepared.read(),
            settings=TrainingSettings(preset="tiny", bpe_dropout=0.1),
            source_tokenizer=LETTERS,
        )


def shard(directory) -> pathlib.Path:
    return next(directory.glob("train-*.tfrecord"))


@pytest.mark.parametrize(("name", "old", "new", "message"), [
    ("train-00000-of-00001.tfrecord", None, None, "shard .*0-of-00001.tfrecord' is missing"),
    ("train-00000-of-00001.tfrecord", None, "short", "0-of-00001.tfrecord' is .* cut or changed"),
    ("prepared.json", None, None, "not a prepared corpus: it has no"),
    ("prepared.json", None, "{", "prepared.json' is damaged"),
    ("prepared.json", '"pairs"', '"pears"', "prepared.json' is damaged"),
    ("prepared.json", '"format": 1', '"format": 2', "has format 2, this version reads 1: prepare"),
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


def flip_a_bit(directory):
    content = bytearray(shard(directory).read_bytes())
    content[len(content) // 2] ^= 1
    shard(directory).write_bytes(content)


def describe_other_shards(difference):
    def describe(directory):
        description = json.loads((directory / "prepared.json").read_text())
        description["splits"]["train"]["pairs"] += difference
        (directory / "prepared.json").write_text(json.dumps(description))

    return describe


def write_another_record(directory):
    """A field of bytes that fills the file to the size that it had; 16 bytes are the frame's."""
    import tensorflow as tf

    path = shard(directory)
    size = path.stat().st_size
    length = size - 16 - 4
    varint = struct.pack("BB", length % 128 | 128, length // 128)
    with tf.io.TFRecordWriter(str(path)) as writer:
        writer.write(b"\xa2\x1f" + varint + b"x" * length)
    assert path.stat().st_size == size


@pytest.mark.parametrize(("damage", "message"), [
    (flip_a_bit, "train-00000-of-00001.tfrecord' is damaged: a record can"),
    (describe_other_shards(-1), "is damaged: .*(pairs|broadcast)"),
    (describe_other_shards(1), "is damaged: .*(pairs|broadcast)"),
    (write_another_record, "is damaged: a record is not one of a prepared corpus"),
])  # fmt: skip
def test_a_damaged_shard_is_named_when_it_is_read(prepared, damage, message):
    damage(prepared.directory)
    with pytest.raises(UserError, match=message):
        PreparedCorpus.load(prepared.directory).read()


@pytest.mark.parametrize("side", [0, 1])
def test_ids_that_are_not_in_the_vocabulary_are_found(tmp_path, monkeypatch, side):
    def broken(*arguments):
        for block in encode_blocks(*arguments):
            block.sides()[side][0][5] = LETTERS.vocab_size
            yield block

    monkeypatch.setattr(module, "encode_blocks", broken)
    prepare_corpus(tmp_path / "corpus", pairs(20), None, LETTERS)
    with pytest.raises(UserError, match="the 'train' shards have ids that are not in the voc"):
        PreparedCorpus.load(tmp_path / "corpus").read()


def test_what_is_missing_of_the_validation_text_is_named(prepared, tmp_path):
    (prepared.directory / "valid.jsonl").write_text('["a"]\n')
    with pytest.raises(UserError, match="valid.jsonl' is missing or damaged"):
        prepared.valid_text  # noqa: B018
    alone = prepare_corpus(tmp_path / "alone", pairs(20), None, LETTERS)
    with pytest.raises(UserError, match="has no 'valid' text"):
        alone.read("valid")


def test_a_corpus_of_an_older_version_has_no_checksum_of_its_text(prepared):
    path = prepared.directory / "prepared.json"
    description = json.loads(path.read_text())
    del description["valid_text"]
    path.write_text(json.dumps(description))
    assert next(iter(PreparedCorpus.load(prepared.directory).valid_text)) == ("a\u2028 b\n", 'c "')


def test_an_earlier_one_is_replaced_whole_and_nothing_else_is(prepared, tmp_path):
    prepare_corpus(prepared.directory, pairs(20), None, tiny_tokenizer())
    names = {path.name for path in prepared.directory.iterdir()}
    assert names == {"prepared.json", "tokenizer.model", "train-00000-of-00001.tfrecord"}
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
