"""The arrays of an `EncodedCorpus` in a folder, a `.npy` file each, written in blocks."""

import contextlib
import pathlib
import zlib
from collections.abc import Iterable, Sequence

import numpy as np

from keras_transformer.data.encoded_corpus import EncodedCorpus
from keras_transformer.errors import UserError, one_line
from keras_transformer.layouts import CORPUS_ARRAYS

_BYTES_AT_ONCE = 2**22


class _ArrayFile(contextlib.AbstractContextManager):
    """A flat `.npy` file that grows; NumPy leaves room for its size in the header."""

    def __init__(self, path: pathlib.Path, dtype):
        self.size, self._dtype = 0, np.dtype(dtype)
        self._file = open(path, "wb")
        self._write_header()

    def append(self, values: np.ndarray) -> None:
        self._file.write(values.astype(self._dtype, copy=False).tobytes())
        self.size += len(values)

    def __exit__(self, *exception):
        with self._file:
            self._file.seek(0)
            self._write_header()

    def _write_header(self):
        shape = {"shape": (self.size,), "fortran_order": False, "descr": self._dtype.str}
        np.lib.format.write_array_header_1_0(self._file, shape)


def write_arrays(folder: pathlib.Path, blocks: Iterable[EncodedCorpus], dtypes: Sequence) -> None:
    """Writes the blocks, one after the other, to a new folder; `dtypes` are those of the ids."""
    folder.mkdir(parents=True)
    dtypes = dtypes[0], np.int64, dtypes[1], np.int64
    with contextlib.ExitStack() as stack:
        source_ids, source_offsets, target_ids, target_offsets = (
            stack.enter_context(_ArrayFile(folder / f"{name}.npy", dtype))
            for name, dtype in zip(CORPUS_ARRAYS, dtypes, strict=True)
        )
        files = (source_ids, source_offsets), (target_ids, target_offsets)
        for _, offsets_file in files:
            offsets_file.append(np.zeros(1))
        for block in blocks:
            for (ids_file, offsets_file), (ids, offsets) in zip(files, block.sides(), strict=True):
                offsets_file.append(offsets[1:] + ids_file.size)
                ids_file.append(ids)


def map_arrays(folder: pathlib.Path) -> EncodedCorpus:
    """Returns the corpus in a folder, whose arrays are read when they are needed.

    Raises:
        UserError: If an array is missing or damaged, as far as its size tells.
    """
    path = folder
    try:
        arrays = []
        for name in CORPUS_ARRAYS:
            path = folder / f"{name}.npy"
            # TensorFlow takes no memory that is read-only; the file stays as it is.
            arrays.append(np.load(path, mmap_mode="c", allow_pickle=False))
            allowed = ("uint16", "int32") if name.endswith("ids") else ("int64",)
            if arrays[-1].ndim != 1 or arrays[-1].dtype not in allowed:
                raise ValueError("it is not an array of a prepared corpus")
        return EncodedCorpus(*arrays)
    except (OSError, ValueError, EOFError) as error:
        problem = "is missing, or was cut or changed"
        raise UserError(f"The array {str(path)!r} {problem} ({one_line(error)}).") from error


def checksum(path: pathlib.Path) -> int:
    """Returns the CRC-32 of a file."""
    result = 0
    with open(path, "rb") as file:
        while content := file.read(_BYTES_AT_ONCE):
            result = zlib.crc32(content, result)
    return result
