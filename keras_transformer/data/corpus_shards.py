"""Shards of an encoded corpus: TFRecord files whose records are a few thousand pairs each.

A record is a `tf.train.Example` with four features of bytes, little-endian as `tf.io.decode_raw`
reads them: `source_lengths` and `target_lengths`, uint16 `[pairs]`, and `source_ids` and
`target_ids`, uint16 or int32 `[tokens]`. As in an `EncodedCorpus`, sources end with EOS and targets
do not.
"""

import dataclasses
import itertools
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from keras_transformer.data.encoded_corpus import (
    EncodedCorpus,
    encode_blocks,
    join_blocks,
    report_drops,
)
from keras_transformer.data.tokenizer_pair import TokenizerPair
from keras_transformer.errors import UserError, one_line

LONGEST_ROW = 2**16 - 1
SHARD_NAMES = r"(train|valid)-\d{5}-of-\d{5}\.tfrecord"
_SHARD = "{}-{:05d}-of-{:05d}.tfrecord"
_BLOCKS_PER_SHARD = 64
_SIDES = ("source", "target")
_ITEM_SIZES = {"uint16": 2, "int32": 4}


@dataclasses.dataclass(frozen=True)
class PreparedSplit:
    """The description of the training or validation pairs of a prepared corpus."""

    pairs: int
    dropped_long: int  # pairs that were left out because a side was too long
    dropped_empty: int  # pairs that were left out because a side was empty
    tokens: dict[str, int]  # number of ids by side: "source", with EOS, and "target", without
    dtypes: dict[str, str]  # dtype of the ids by side, "uint16" or "int32"
    shards: dict[str, int]  # sizes in bytes by file name, in order

    def __post_init__(self):
        counts = [self.pairs, self.dropped_long, self.dropped_empty]
        counts += [self.tokens[side] for side in _SIDES] + list(self.shards.values())
        if not all(type(count) is int and 0 <= count < 2**63 for count in counts):
            raise ValueError(f"a count must be an integer from 0. Received: {counts}")
        if not all(re.fullmatch(SHARD_NAMES, name) for name in self.shards):
            raise ValueError(f"a shard has a wrong name. Received: {list(self.shards)}")
        # These numbers allocate arrays: one that the shards cannot hold must not fill the memory.
        sizes = [self.tokens[side] * _ITEM_SIZES[self.dtypes[side]] for side in _SIDES]
        if sum(sizes) + 4 * self.pairs > sum(self.shards.values()):
            raise ValueError("the shards are too small for the numbers of pairs and tokens")

    @property
    def num_read(self) -> int:
        """Number of pairs that were read, including those that were left out."""
        return self.pairs + self.dropped_long + self.dropped_empty


def write_shards(
    folder: pathlib.Path,
    split: str,
    corpus: Iterable[tuple[str, str]],
    tokenizers: TokenizerPair,
    max_length: int,
    progress: Callable[[int], object] | None,
    num_read: int = 0,
) -> PreparedSplit:
    """Writes a corpus as shards; `progress` counts its pairs from `num_read` on."""
    blocks = encode_blocks(corpus, (tokenizers.source, tokenizers.of_target), max_length)
    counts = dict.fromkeys(("pairs", "dropped_long", "dropped_empty"), 0)
    tokens, dtypes = dict.fromkeys(_SIDES, 0), {}
    paths = []

    def counted(blocks: Iterable[EncodedCorpus]) -> Iterator[EncodedCorpus]:
        for block in blocks:
            found = len(block), block.num_dropped_long, block.num_dropped_empty
            for name, number in zip(counts, found, strict=True):
                counts[name] += number
            for side, (ids, _) in zip(_SIDES, block.sides(), strict=True):
                tokens[side] += len(ids)
                dtypes[side] = ids.dtype.name
            yield block
            if progress is not None:
                progress(num_read + sum(counts.values()))

    for first in blocks:
        paths.append(folder / f"{split}-{len(paths)}.tfrecord")
        rest = itertools.islice(blocks, _BLOCKS_PER_SHARD - 1)
        _write_shard(paths[-1], counted(itertools.chain([first], rest)))
    report_drops(*counts.values(), max_length)
    shards = {}
    for number, path in enumerate(paths):
        path = path.rename(folder / _SHARD.format(split, number, len(paths)))
        shards[path.name] = path.stat().st_size
    return PreparedSplit(**counts, tokens=tokens, dtypes=dtypes, shards=shards)


def read_shards(directory: pathlib.Path, split: PreparedSplit) -> EncodedCorpus:
    """Reads the shards of a split."""
    path = directory

    def blocks() -> Iterator[EncodedCorpus]:
        nonlocal path
        for path in (directory / name for name in split.shards):
            for record in _records(path):
                arrays = []
                for side in _SIDES:
                    lengths = np.frombuffer(record[f"{side}_lengths"], "<u2")
                    dtype = np.dtype(split.dtypes[side]).newbyteorder("<")
                    ends = np.cumsum(lengths, dtype=np.int64)
                    arrays += np.frombuffer(record[f"{side}_ids"], dtype), np.append(0, ends)
                yield EncodedCorpus(*arrays)

    sizes, dtypes = zip(*((split.tokens[side], split.dtypes[side]) for side in _SIDES), strict=True)
    dropped = split.dropped_long, split.dropped_empty
    try:
        return join_blocks(blocks(), split.pairs, sizes, dtypes, dropped)
    except ValueError as error:
        raise UserError(f"The shard {str(path)!r} is damaged: {one_line(error)}.") from error


def _write_shard(path: pathlib.Path, blocks: Iterable[EncodedCorpus]) -> None:
    """Writes a file with a record for each block; raises an `OSError` if the disk is full."""
    import tensorflow as tf

    try:
        with tf.io.TFRecordWriter(str(path)) as writer:
            for block in blocks:
                example = tf.train.Example()
                for side, (ids, offsets) in zip(_SIDES, block.sides(), strict=True):
                    stored = {f"{side}_lengths": np.diff(offsets).astype("<u2")}
                    stored[f"{side}_ids"] = ids.astype(ids.dtype.newbyteorder("<"), copy=False)
                    for name, array in stored.items():
                        example.features.feature[name].bytes_list.value.append(array.tobytes())
                writer.write(example.SerializeToString(deterministic=True))
    except tf.errors.OpError as error:
        raise OSError(f"{str(path.parent)!r} cannot be written: {error.message}") from error


def _records(path: pathlib.Path) -> Iterator[dict[str, bytes]]:
    """Yields the four arrays of every record as bytes; raises a `ValueError` if it is damaged."""
    import tensorflow as tf
    from google.protobuf.message import DecodeError

    names = [f"{side}_{what}" for side in _SIDES for what in ("lengths", "ids")]
    try:
        for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
            features = tf.train.Example.FromString(record).features.feature
            values = {name: features[name].bytes_list.value for name in names}
            if any(len(value) != 1 for value in values.values()):
                raise ValueError("a record is not one of a prepared corpus")
            yield {name: value[0] for name, value in values.items()}
    except (tf.errors.OpError, DecodeError) as error:
        raise ValueError("a record cannot be read") from error
