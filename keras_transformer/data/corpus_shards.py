"""Shards of an encoded corpus: TFRecord files whose records are some thousand pairs each.

A record is a `tf.train.Example` of four features of bytes: `source_lengths` and `target_lengths`,
uint16 `[pairs]`, and `source_ids` and `target_ids`, the rows one after another; little-endian, as
`tf.io.decode_raw` reads them. Rows are those of an `EncodedCorpus`: sources end with EOS, targets
do not.
"""

import pathlib
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from keras_transformer.data.aligned_arrays import empty_aligned
from keras_transformer.data.encoded_corpus import EncodedCorpus
from keras_transformer.errors import UserError

LONGEST_ROW = 2**16 - 1
_SIDES = ("source", "target")


def write_shard(path: pathlib.Path, blocks: Iterable[EncodedCorpus]) -> None:
    """Writes a file with a record for each block of `encode_blocks`.

    Raises:
        OSError: if it cannot be written, for example on a full disk.
    """
    import tensorflow as tf

    try:
        with tf.io.TFRecordWriter(str(path)) as writer:
            for block in blocks:
                writer.write(_to_example(block))
    except tf.errors.OpError as error:
        raise OSError(f"{str(path.parent)!r} cannot be written: {error.message}") from error


def read_shards(
    paths: Iterable[pathlib.Path],
    pairs: int,
    tokens: Mapping[str, int],
    dtypes: Mapping[str, str],
) -> EncodedCorpus:
    """Reads the files of a corpus into arrays that have their full size from the beginning.

    Args:
        paths: the files, in order.
        pairs: number of pairs in all of them.
        tokens: number of ids of `"source"` and `"target"`.
        dtypes: `"uint16"` or `"int32"`, of the ids of each.

    Raises:
        UserError: if a file is damaged, or the numbers are different.
    """
    sides = {side: _Side(pairs, tokens[side], dtypes[side]) for side in _SIDES}
    path = None
    for path in paths:
        try:
            for record in _records(path):
                for name, side in sides.items():
                    side.add(record[f"{name}_lengths"], record[f"{name}_ids"])
        except ValueError as error:
            raise UserError(f"The shard {str(path)!r} is damaged: {error}.") from error
    if not all(side.is_complete() for side in sides.values()):
        raise UserError(f"The shards up to {str(path)!r} have fewer pairs than they should.")
    return EncodedCorpus(*(array for side in sides.values() for array in (side.ids, side.offsets)))


class _Side:
    """The arrays of one side, filled with the rows of one record after another."""

    def __init__(self, pairs: int, tokens: int, dtype: str):
        if dtype not in ("uint16", "int32"):
            raise UserError(f"The ids must be uint16 or int32. Received: dtype={dtype!r}")
        self.ids = empty_aligned(tokens, dtype)
        self.offsets = empty_aligned(pairs + 1, np.int64)
        self.offsets[0] = 0
        self._stored = np.dtype(dtype).newbyteorder("<")
        self._num_pairs = self._num_tokens = 0

    def add(self, lengths: bytes, ids: bytes) -> None:
        lengths, ids = np.frombuffer(lengths, "<u2"), np.frombuffer(ids, self._stored)
        pairs, tokens = self._num_pairs + len(lengths), self._num_tokens + len(ids)
        if int(lengths.sum(dtype=np.int64)) != len(ids):
            raise ValueError("the lengths do not fit the number of ids")
        if pairs >= len(self.offsets) or tokens > len(self.ids):
            raise ValueError("it has more pairs than it should")
        ends = np.cumsum(lengths, dtype=np.int64)
        self.offsets[self._num_pairs + 1 : pairs + 1] = ends + self._num_tokens
        self.ids[self._num_tokens : tokens] = ids
        self._num_pairs, self._num_tokens = pairs, tokens

    def is_complete(self) -> bool:
        return (self._num_pairs + 1, self._num_tokens) == (len(self.offsets), len(self.ids))


def _to_example(block: EncodedCorpus) -> bytes:
    import tensorflow as tf

    contents = {
        "source_lengths": np.diff(block.source_offsets).astype("<u2"),
        "source_ids": block.source_ids,
        "target_lengths": np.diff(block.target_offsets).astype("<u2"),
        "target_ids": block.target_ids,
    }
    features = {
        name: tf.train.Feature(
            bytes_list=tf.train.BytesList(
                value=[array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()]
            )
        )
        for name, array in contents.items()
    }
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


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
