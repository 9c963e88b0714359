"""`prepare_corpus`: encodes a corpus into a directory, in one process or in several."""

import dataclasses
import hashlib
import itertools
import json
import logging
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from keras_transformer.data.encoded_corpus import (
    EncodedCorpus,
    corpus_chunks,
    dtype_of_ids,
    encode_blocks,
    report_drops,
)
from keras_transformer.data.mixed_corpus import MixedCorpus, check_tags
from keras_transformer.data.prepared_corpus import (
    FORMAT,
    PreparedCorpus,
    PreparedSplit,
    check_max_length,
    checksum,
    map_arrays,
    write_arrays,
)
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.data.tokenizer_pair import TokenizerPair
from keras_transformer.errors import UserError
from keras_transformer.files import atomic_folder, read_json, remove
from keras_transformer.layouts import (
    CORPUS_ARRAYS,
    DESCRIPTION_FILE,
    PART_FILE,
    PREPARED_CORPUS,
    VALID_TEXT_FILE,
)

_PAIRS_AT_ONCE = 2**16
_LOGGER = logging.getLogger(__name__)


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
    `part`, each encodes a p-th of the text into a folder in `.NAME.parts` beside the directory. The
    one that finds all parts there writes the corpus, the same to the byte; the others return None.
    Repeat a part that was killed.

    Args:
        directory: Folder that is missing, empty, or a prepared corpus to replace.
        train_corpus: Yields pairs of `str`, whose order is kept.
        valid_corpus: The same for validation, or None. Its text is stored too, for scores.
        source_tokenizer, target_tokenizer, max_length, progress: As in
            `EncodedCorpus.from_corpus`. The tokenizers are stored as well, `max_length` is at most
            65,535, and the pairs of both corpora are counted together.
        part: `(i, p)` for the i-th of p processes, from 1; None for a single process.

    Raises:
        UserError: If the directory holds anything else, or no pair is left of a corpus.
        ValueError: If `max_length` or `part` is out of range.

    Example:

    >>> import tempfile
    >>> from keras_transformer.data import SubwordTokenizer, prepare_corpus
    >>> train, valid, tokenizer = [("a b", "c"), ("b", "a a a")], [("a", "b")], ["a", "b", "c"]
    >>> prepared = prepare_corpus(tempfile.mkdtemp(), train, valid, SubwordTokenizer(tokenizer))
    >>> prepared.read("train").target_ids.tolist(), list(prepared.valid_text)
    ([6, 4, 4, 4], [('a', 'b')])
    """
    check_max_length(max_length)
    PREPARED_CORPUS.check_output(directory)
    if isinstance(train_corpus, MixedCorpus):
        check_tags(train_corpus, source_tokenizer)
    tokenizers = TokenizerPair(source_tokenizer, target_tokenizer)
    pairs = [] if valid_corpus is None else list(valid_corpus)
    path = pathlib.Path(os.path.realpath(directory))
    parts_folder, parts = path.with_name(f".{path.name}.parts"), None
    if part is not None:
        parts = _encode_part(
            parts_folder, part, train_corpus, pairs, tokenizers, max_length, progress
        )
        if parts is None:
            return None
    try:
        valid_pairs = None if valid_corpus is None else pairs
        _write_corpus(path, train_corpus, valid_pairs, parts, tokenizers, max_length, progress)
    except (OSError, UserError):
        # The process of another part, which ended at the same time, may have written the corpus.
        if part is None or parts_folder.exists():
            raise
    if part is not None:
        remove(parts_folder)
    return PreparedCorpus.load(directory)


def _write_corpus(directory, corpus, valid_pairs, parts, tokenizers, max_length, progress):
    """Writes a directory; `parts` are folders of the encoded text, or None to encode it."""
    options = tokenizers, max_length, progress
    with atomic_folder(directory) as aside:
        aside.mkdir()
        files, folder = tokenizers.save(aside), aside / "train"
        if parts is None:
            totals = _encode(folder, corpus, *options)
        else:
            totals = sum(np.array(read_json(part / PART_FILE)["totals"]) for part in parts)
            write_arrays(folder, _read_blocks(parts), _dtypes(tokenizers))
        splits = {"train": _describe(folder, corpus, totals, max_length)}
        if valid_pairs is not None:
            lines = (json.dumps(pair) + "\n" for pair in valid_pairs)
            (aside / VALID_TEXT_FILE).write_text("".join(lines), encoding="utf-8")
            files.append(aside / VALID_TEXT_FILE)
            folder, num_read = aside / "valid", splits["train"].num_read
            totals = _encode(folder, valid_pairs, *options, num_read=num_read)
            splits["valid"] = _describe(folder, valid_pairs, totals, max_length)
        description = {
            "format": FORMAT,
            "max_length": max_length,
            "files": {path.name: checksum(path) for path in files},
            "splits": {name: dataclasses.asdict(split) for name, split in splits.items()},
        }
        text = json.dumps(description, indent=2) + "\n"
        (aside / DESCRIPTION_FILE).write_text(text, encoding="utf-8")


def _encode(folder, corpus, tokenizers, max_length, progress, span=(0, None), num_read=0):
    """Writes the arrays of a span of a corpus; `progress` counts its pairs from `num_read` on.

    Returns the numbers of pairs, and of those left out as too long or empty; then the number of
    pairs of each corpus in a mixture.
    """
    is_mixed = isinstance(corpus, MixedCorpus)
    totals = np.zeros(3 + (len(corpus.corpora) if is_mixed else 0), np.int64)

    def blocks():
        pairs = itertools.islice(corpus, *span)
        for block in encode_blocks(pairs, (tokenizers.source, tokenizers.of_target), max_length):
            totals[:3] += len(block), block.num_dropped_long, block.num_dropped_empty
            if is_mixed:
                totals[3:] += corpus.count_pairs(block.rows + span[0])
            yield block
            if progress is not None:
                progress(num_read + int(totals[:3].sum()))

    write_arrays(folder, blocks(), _dtypes(tokenizers))
    return totals


def _dtypes(tokenizers):
    return [dtype_of_ids(tokenizer) for tokenizer in (tokenizers.source, tokenizers.of_target)]


def _describe(folder, corpus, totals, max_length) -> PreparedSplit:
    num_pairs, num_long, num_empty, *sizes = totals.tolist()
    report_drops(num_pairs, num_long, num_empty, max_length)
    encoded = map_arrays(folder)
    checksums = {name: checksum(folder / f"{name}.npy") for name in CORPUS_ARRAYS}
    mixture = corpus.mixture(sizes) if isinstance(corpus, MixedCorpus) else None
    return PreparedSplit(num_pairs, num_long, num_empty, encoded.num_tokens, checksums, mixture)


def _encode_part(folder, part, corpus, valid_pairs, tokenizers, max_length, progress):
    """Encodes a part of the text into a folder; returns the folders of all parts if all are there.

    A part is complete or not there, and says what it is made of.
    """
    number, num_parts = part
    if not 1 <= number <= num_parts:
        raise ValueError(f"part must be (i, p) with 1 <= i <= p. Received: {part=}")
    mixed = [corpus.weights, corpus.sizes] if isinstance(corpus, MixedCorpus) else []
    made_of = [max_length, mixed, valid_pairs, *map(checksum, tokenizers.save(folder))]
    digest, num_pairs = hashlib.blake2b(json.dumps(made_of).encode(), digest_size=16), 0
    for chunk in corpus_chunks(corpus):
        digest.update(json.dumps(chunk).encode())
        num_pairs += len(chunk)

    def is_complete(path):
        return path.is_dir() and read_json(path / PART_FILE)["made_of"] == digest.hexdigest()

    parts = [folder / f"{i}-of-{num_parts}" for i in range(1, num_parts + 1)]
    if not is_complete(own := parts[number - 1]):
        span = num_pairs * (number - 1) // num_parts, num_pairs * number // num_parts
        with atomic_folder(own) as aside:
            totals = _encode(aside, corpus, tokenizers, max_length, progress, span).tolist()
            content = json.dumps({"made_of": digest.hexdigest(), "totals": totals})
            (aside / PART_FILE).write_text(content, encoding="utf-8")
    missing = [path for path in parts if not is_complete(path)]
    if others := [path.name for path in missing if path.is_dir()]:
        text = "%s has parts of other text, vocabulary or options, which are not used: %s."
        _LOGGER.warning(text, folder, ", ".join(others))
    text = "Part %d of %d is complete; parts that are missing: %d."
    _LOGGER.info(text, number, num_parts, len(missing))
    return None if missing else parts


def _read_blocks(parts) -> Iterator[EncodedCorpus]:
    for encoded in map(map_arrays, parts):
        for first in range(0, len(encoded), _PAIRS_AT_ONCE):
            arrays = []
            for ids, offsets in encoded.sides():
                offsets = offsets[first : first + _PAIRS_AT_ONCE + 1]
                arrays += [ids[offsets[0] : offsets[-1]], offsets - offsets[0]]
            yield EncodedCorpus(*arrays)
