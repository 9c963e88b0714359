"""A corpus that was encoded once and is stored on the disk: TFRecord shards and a description.

A record is a `tf.train.Example` of a few thousand pairs as in an `EncodedCorpus`: four features of
little-endian bytes, `{source,target}_lengths`, uint16 `[pairs]`, and `{source,target}_ids`, uint16
or int32 `[tokens]`.
"""

import dataclasses
import hashlib
import itertools
import json
import logging
import os
import pathlib
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from keras_transformer.data.encoded_corpus import (
    EncodedCorpus,
    PairsCorpus,
    corpus_chunks,
    encode_blocks,
    join_blocks,
    report_drops,
)
from keras_transformer.data.mixed_corpus import MixedCorpus, Mixture, check_tags, mixture_of
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.data.tokenizer_pair import TokenizerPair
from keras_transformer.errors import UserError, one_line
from keras_transformer.files import atomic_folder, atomic_write, read_json, remove
from keras_transformer.layouts import (
    DESCRIPTION_FILE,
    PREPARED_CORPUS,
    TOKENIZER_FILES,
    VALID_TEXT_FILE,
)

FORMAT = 1
_LONGEST_ROW = 2**16 - 1
_SHARD_NAMES = r"(train|valid)-\d{5}-of-\d{5}\.tfrecord"
_BLOCKS_PER_SHARD = 64
_AGAIN = "prepare the corpus again."
_SIDES = ("source", "target")
_ITEM_SIZES = {"uint16": 2, "int32": 4}

_LOGGER = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class PreparedSplit:
    """The description of the training or validation pairs of a prepared corpus."""

    pairs: int
    dropped_long: int  # left out because a side was too long
    dropped_empty: int
    tokens: dict[str, int]  # number of ids by side: "source", with EOS, and "target", without
    dtypes: dict[str, str]  # dtype of the ids by side, "uint16" or "int32"
    shards: dict[str, int]  # sizes in bytes by file name, in order
    mixture: Mixture | None = None  # of the corpora, in JSON a dict

    def __post_init__(self):
        counts = [self.pairs, self.dropped_long, self.dropped_empty]
        counts += [self.tokens[side] for side in _SIDES] + list(self.shards.values())
        if not all(type(count) is int and 0 <= count < 2**63 for count in counts):
            raise ValueError(f"a count must be an integer from 0. Received: {counts}")
        if not all(re.fullmatch(_SHARD_NAMES, name) for name in self.shards):
            raise ValueError(f"a shard has a wrong name. Received: {list(self.shards)}")
        # These numbers allocate arrays: one that the shards cannot hold must not fill the memory.
        sizes = [self.tokens[side] * _ITEM_SIZES[self.dtypes[side]] for side in _SIDES]
        if sum(sizes) + 4 * self.pairs > sum(self.shards.values()):
            raise ValueError("the shards are too small for the numbers of pairs and tokens")
        if isinstance(self.mixture, dict):
            object.__setattr__(self, "mixture", Mixture(**self.mixture))
        if self.mixture is not None and sum(self.mixture.sizes) != self.pairs:
            raise ValueError("the corpora do not have the number of pairs")

    @property
    def num_read(self) -> int:
        return self.pairs + self.dropped_long + self.dropped_empty


def prepare_corpus(
    directory: str | os.PathLike,
    train_corpus: Iterable[tuple[str, str]],
    valid_corpus: Iterable[tuple[str, str]] | None,
    source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer | None = None,
    max_length: int = 256,
    progress: Callable[[int], object] | None = None,
    part: tuple[int, int] | None = None,
) -> "PreparedCorpus | None":
    """Returns a `PreparedCorpus`, encoded into a directory a few thousand pairs at a time.

    It replaces a prepared corpus that is there already when it is complete.

    Several processes with a common disk can share the work. With the same arguments, but another
    `part`, each reads the whole text, and encodes every p-th block of 8,192 pairs into the folder
    `.NAME.parts` beside the directory. The one that finds all blocks there writes the corpus, the
    same to the byte; the others return None. Repeat a part that was killed: it goes on.

    Args:
        directory: folder that is missing, empty, or a prepared corpus to replace.
        train_corpus: yields pairs of `str`, whose order is kept.
        valid_corpus: the same for validation, or None. Its text is stored too, for scores.
        source_tokenizer, target_tokenizer, max_length, progress: as in
            `EncodedCorpus.from_corpus`. The tokenizers are stored as well, `max_length` is at most
            65,535, and the pairs of both corpora are counted together.
        part: `(i, p)` for the i-th of p processes, from 1; None for a single process.

    Raises:
        UserError: if the directory holds anything else, or no pair is left of a corpus.
        ValueError: if `max_length` or `part` is out of range.

    Example:

    >>> import tempfile
    >>> from keras_transformer.data import SubwordTokenizer, prepare_corpus
    >>> train, valid, tokenizer = [("a b", "c"), ("b", "a a a")], [("a", "b")], ["a", "b", "c"]
    >>> prepared = prepare_corpus(tempfile.mkdtemp(), train, valid, SubwordTokenizer(tokenizer))
    >>> prepared.read("train").target_ids.tolist(), list(prepared.valid_text)
    ([6, 4, 4, 4], [('a', 'b')])
    """
    _check_max_length(max_length)
    directory = pathlib.Path(directory)
    check_prepared_directory(directory)
    tokenizers = TokenizerPair(source_tokenizer, target_tokenizer)
    options = tokenizers, max_length, progress
    pairs = [] if valid_corpus is None else list(valid_corpus)
    path = pathlib.Path(os.path.realpath(directory))
    made_of = json.dumps([getattr(train_corpus, "weights", None), pairs]).encode()
    parts = path.with_name(f".{path.name}.parts"), zlib.crc32(made_of)
    if part is not None and not _encode_part(parts, part, train_corpus, *options):
        return None
    with atomic_folder(directory) as aside:
        aside.mkdir()
        files = tokenizers.save(aside)
        splits = {"train": _write_shards(aside, "train", train_corpus, *options, parts=parts)}
        if valid_corpus is not None:
            lines = (json.dumps(pair) + "\n" for pair in pairs)
            (aside / VALID_TEXT_FILE).write_text("".join(lines), encoding="utf-8")
            num_read = splits["train"].num_read
            splits["valid"] = _write_shards(aside, "valid", pairs, *options, num_read)
        description = {
            "format": FORMAT,
            "max_length": max_length,
            "tokenizers": {path.name: _checksum(path) for path in files},
            "splits": {name: dataclasses.asdict(split) for name, split in splits.items()},
        }
        if valid_corpus is not None:
            description["valid_text"] = _checksum(aside / VALID_TEXT_FILE)
        text = json.dumps(description, indent=2) + "\n"
        (aside / DESCRIPTION_FILE).write_text(text, encoding="utf-8")
    remove(parts[0])
    return PreparedCorpus.load(directory)


def check_prepared_directory(directory: str | os.PathLike) -> None:
    """Raises a `UserError` if `prepare_corpus` may not write into the directory."""
    PREPARED_CORPUS.check_output(directory)


@dataclasses.dataclass(frozen=True)
class PreparedCorpus:
    """A directory that `prepare_corpus` wrote, to train from without the text.

    Attributes:
        directory: `pathlib.Path`.
        source_tokenizer, target_tokenizer: the second is None if both languages share the first.
        max_length: maximum number of tokens of a sentence, EOS counted; longer pairs are left out.
        splits: dict of `PreparedSplit`, for `"train"`, and `"valid"` if there is validation text.

    Example:

    >>> import tempfile
    >>> from keras_transformer.data import PreparedCorpus, SubwordTokenizer, prepare_corpus
    >>> directory, pairs = tempfile.mkdtemp(), [("a b", "c"), ("b", "a a a")]
    >>> _ = prepare_corpus(directory, pairs, None, SubwordTokenizer(["a", "b", "c"]))
    >>> prepared = PreparedCorpus.load(directory)
    >>> len(prepared.read("train")), prepared.max_length, prepared.valid_text
    (2, 256, None)
    """

    directory: pathlib.Path
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer | None
    max_length: int
    splits: dict[str, PreparedSplit]

    @classmethod
    def load(cls, directory: str | os.PathLike) -> "PreparedCorpus":
        """Returns the prepared corpus of a directory, without the ids.

        Args:
            directory: as `prepare_corpus` wrote it.

        Raises:
            UserError: if it is not a prepared corpus, has another format, or is incomplete.
        """
        directory = pathlib.Path(directory)
        max_length, checksums, valid_text, splits = _read_description(directory)
        for split in splits.values():
            for name, size in split.shards.items():
                path = directory / name
                if not path.is_file() or path.stat().st_size != size:
                    problem = "is missing, or was cut or changed"
                    raise UserError(f"The shard {str(path)!r} {problem}: {_AGAIN}")
        # A corpus without validation pairs has no such text, and older ones no checksum of it.
        of_text = {} if valid_text is None else {VALID_TEXT_FILE: valid_text}
        for name, checksum in (checksums | of_text).items():
            path = directory / name
            if not path.is_file() or _checksum(path) != checksum:
                problem = "is not the file that was written with the corpus"
                raise UserError(f"{str(path)!r} {problem}: {_AGAIN}")
        tokenizers = TokenizerPair.load(directory, is_shared=len(checksums) == 1)
        return cls(directory, *tokenizers, max_length, splits)

    def read(self, split: str = "train") -> EncodedCorpus:
        """Returns the `EncodedCorpus` of a split; it takes 2 or 4 bytes per token and 16 per pair.

        Args:
            split: `"train"` or `"valid"`.

        Raises:
            UserError: if there is no such split, or a shard is damaged.
        """
        if split not in self.splits:
            raise UserError(f"{str(self.directory)!r} has no {split!r} text.")
        encoded = _read_shards(self.directory, self.splits[split])
        tokenizers = self.source_tokenizer, self.target_tokenizer or self.source_tokenizer
        for (ids, _), tokenizer in zip(encoded.sides(), tokenizers, strict=True):
            # On a GPU, TensorFlow reads a missing row of an embedding as zeros.
            if ids.size and not 0 <= ids.min() <= ids.max() < tokenizer.vocab_size:
                problem = f"the {split!r} shards have ids that are not in the vocabulary"
                raise UserError(f"{str(self.directory)!r} is damaged: {problem}.")
        return encoded

    @property
    def valid_text(self) -> PairsCorpus | None:
        """The raw text of the validation pairs, or None if there is none."""
        if "valid" not in self.splits:
            return None
        path = self.directory / VALID_TEXT_FILE
        try:
            if not path.is_file():  # A pipe is never read to its end.
                raise ValueError("it is not a file")
            lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
            pairs = [json.loads(line) for line in lines]
            if len(pairs) != self.splits["valid"].num_read:
                raise ValueError("it has another number of lines")
            if {tuple(map(type, pair)) for pair in pairs} - {(str, str)}:
                raise ValueError("a line is not a pair of texts")
            return PairsCorpus(pairs)
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise UserError(f"{str(path)!r} is missing or damaged: {one_line(error)}.") from error


def _read_description(directory):
    """Returns the maximal length, checksums of tokenizers and validation text, and the splits."""
    path, name = directory / DESCRIPTION_FILE, repr(str(directory))
    if not path.is_file():
        raise UserError(f"{name} is not a prepared corpus: it has no {DESCRIPTION_FILE}.")
    content = read_json(path)
    if content.get("format") != FORMAT:
        problem = f"has format {one_line(ValueError(repr(content.get('format'))))}"
        raise UserError(f"{name} {problem}, this version reads {FORMAT}: {_AGAIN}")
    try:
        splits = {name: PreparedSplit(**split) for name, split in content["splits"].items()}
        max_length, checksums = content["max_length"], content["tokenizers"]
        _check_max_length(max_length)
        names = sorted(n.split(".")[0] if n in TOKENIZER_FILES else "" for n in checksums)
        if names not in (["tokenizer"], ["source_tokenizer", "target_tokenizer"]):
            raise ValueError(f"other tokenizers are expected. Received: {names}")
        if "train" not in splits:
            raise ValueError("it has no training pairs")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{str(path)!r} is damaged: {one_line(error)}.") from error
    return max_length, checksums, content.get("valid_text"), splits


def _checksum(path: pathlib.Path) -> int:
    return zlib.crc32(path.read_bytes())


def _check_max_length(max_length) -> None:
    if type(max_length) is not int or not 1 <= max_length <= _LONGEST_ROW:
        raise ValueError(f"max_length must be from 1 to {_LONGEST_ROW}. Received: {max_length=}")


def _encode_part(parts, part, corpus, tokenizers, max_length, progress) -> bool:
    """Encodes the blocks of a part that a folder lacks; returns whether all parts are complete."""
    number, num_parts = part
    if not 1 <= number <= num_parts:
        raise ValueError(f"part must be (i, p) with 1 <= i <= p. Received: {part=}")
    parts[0].mkdir(parents=True, exist_ok=True)
    paths: list[pathlib.Path] = []
    num_read = 0
    for chunk, path in _stored_chunks(parts, corpus, tokenizers, max_length):
        if len(paths) % num_parts == number - 1 and not path.exists():
            block = _encode_chunk(chunk, tokenizers, max_length)
            dropped = [block.num_dropped_long, block.num_dropped_empty]
            with atomic_write(path) as aside, open(aside, "wb") as file:
                np.savez(file, *block.arrays(), dropped, block.rows)
        paths.append(path)
        num_read += len(chunk)
        if progress is not None:
            progress(num_read)
    if others := set(parts[0].glob("[!.]*.npz")).difference(paths):
        text = "%s has %d blocks of other text, vocabulary or options, which are not used."
        _LOGGER.warning(text, parts[0], len(others))
    missing = sum(not path.exists() for path in paths)
    text = "Part %d of %d is complete; blocks that are missing: %d of %d."
    _LOGGER.info(text, number, num_parts, missing, len(paths))
    return not missing


def _stored_blocks(parts, corpus, tokenizers, max_length):
    """Yields the blocks of `encode_blocks`; those in the folder are not encoded again."""
    first_row = 0
    for chunk, path in _stored_chunks(parts, corpus, tokenizers, max_length):
        try:
            with open(path, "rb") as file, np.load(file) as stored:
                *arrays, dropped, rows = stored.values()
            block: Any = EncodedCorpus(*arrays)
            block.rows, (block.num_dropped_long, block.num_dropped_empty) = rows, dropped.tolist()
        except (OSError, ValueError, zipfile.BadZipFile):  # missing or damaged
            block = _encode_chunk(chunk, tokenizers, max_length)
        block.rows += first_row
        first_row += len(chunk)
        yield block


def _stored_chunks(parts, corpus, tokenizers, max_length):
    """Yields lists of pairs with the path of their block: a checksum of all it depends on."""
    folder, made_of = parts
    if isinstance(corpus, MixedCorpus):
        check_tags(corpus, tokenizers.source)
    made_of = [made_of, max_length, *map(_checksum, tokenizers.save(folder))]
    for chunk in corpus_chunks(corpus):
        digest = hashlib.blake2b(json.dumps([made_of, chunk]).encode(), digest_size=16)
        yield chunk, folder / f"{digest.hexdigest()}.npz"


def _encode_chunk(chunk, tokenizers, max_length):
    (block,) = encode_blocks(chunk, (tokenizers.source, tokenizers.of_target), max_length)
    return block


def _write_shards(
    folder, split, corpus, tokenizers, max_length, progress, num_read=0, parts=None
) -> PreparedSplit:
    """Writes a corpus as shards; `progress` counts its pairs from `num_read` on.

    `parts` are a folder, which may have encoded blocks, and a checksum of what else they must have
    in common.
    """
    import tensorflow as tf

    counts = dict.fromkeys(("pairs", "dropped_long", "dropped_empty"), 0)
    tokens, dtypes = dict.fromkeys(_SIDES, 0), {}
    rows: list[Any] = []  # in a mixed corpus
    paths: list[pathlib.Path] = []
    blocks = encode_blocks(corpus, (tokenizers.source, tokenizers.of_target), max_length)
    if parts and parts[0].is_dir():
        blocks = _stored_blocks(parts, corpus, tokenizers, max_length)
    try:
        for first in blocks:
            paths.append(folder / f"{split}-{len(paths)}.tfrecord")
            rest = itertools.islice(blocks, _BLOCKS_PER_SHARD - 1)
            with tf.io.TFRecordWriter(str(paths[-1])) as writer:
                for block in itertools.chain([first], rest):
                    writer.write(_to_record(block))
                    counts["pairs"] += len(block)
                    rows += [block.rows] if isinstance(corpus, MixedCorpus) else []
                    counts["dropped_long"] += block.num_dropped_long
                    counts["dropped_empty"] += block.num_dropped_empty
                    for side, (ids, _) in zip(_SIDES, block.sides(), strict=True):
                        tokens[side] += len(ids)
                        dtypes[side] = ids.dtype.name
                    if progress is not None:
                        progress(num_read + sum(counts.values()))
    except tf.errors.OpError as error:
        raise OSError(f"{str(folder)!r} cannot be written: {error.message}") from error
    num_pairs, num_long, num_empty = counts.values()
    report_drops(num_pairs, num_long, num_empty, max_length)
    shards = {}
    for number, path in enumerate(paths):
        path = path.rename(folder / f"{split}-{number:05d}-of-{len(paths):05d}.tfrecord")
        shards[path.name] = path.stat().st_size
    mixture = mixture_of(corpus, np.concatenate(rows)) if rows else None
    return PreparedSplit(**counts, tokens=tokens, dtypes=dtypes, shards=shards, mixture=mixture)


def _to_record(block):
    import tensorflow as tf

    example = tf.train.Example()
    for side, (ids, offsets) in zip(_SIDES, block.sides(), strict=True):
        stored = {f"{side}_lengths": np.diff(offsets).astype("<u2")}
        stored[f"{side}_ids"] = ids.astype(ids.dtype.newbyteorder("<"), copy=False)
        for name, array in stored.items():
            example.features.feature[name].bytes_list.value.append(array.tobytes())
    return example.SerializeToString(deterministic=True)


def _read_shards(directory: pathlib.Path, split: PreparedSplit) -> EncodedCorpus:
    import tensorflow as tf
    from google.protobuf.message import DecodeError

    path = directory

    def blocks():
        nonlocal path
        for path in (directory / name for name in split.shards):
            for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
                yield _from_record(tf.train.Example.FromString(record), split.dtypes)

    sizes = [split.tokens[side] for side in _SIDES]
    dtypes = [split.dtypes[side] for side in _SIDES]
    dropped = split.dropped_long, split.dropped_empty
    try:
        encoded = join_blocks(blocks(), split.pairs, sizes, dtypes, dropped)
    except (tf.errors.OpError, DecodeError, ValueError) as error:
        problem = one_line(error) if isinstance(error, ValueError) else "a record cannot be read"
        raise UserError(f"The shard {str(path)!r} is damaged: {problem}.") from error
    encoded.mixture = split.mixture
    return encoded


def _from_record(example, dtypes):
    """Returns the block of a record; raises a `ValueError` if it is damaged."""
    arrays: list[Any] = []
    for side in _SIDES:
        dtype = np.dtype(dtypes[side]).newbyteorder("<")
        for name, of_array in ((f"{side}_ids", dtype), (f"{side}_lengths", "<u2")):
            values = example.features.feature[name].bytes_list.value
            if len(values) != 1:
                raise ValueError("a record is not one of a prepared corpus")
            arrays.append(np.frombuffer(values[0], of_array))
        arrays[-1] = np.append(0, np.cumsum(arrays[-1], dtype=np.int64))
    return EncodedCorpus(*arrays)
