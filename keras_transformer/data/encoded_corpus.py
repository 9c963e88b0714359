"""Sentence pairs as token ids in flat arrays."""

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from keras_transformer.data.corpora import line_chunks
from keras_transformer.data.mixed_corpus import MixedCorpus, Mixture, check_tags
from keras_transformer.data.tokenizer import EOS_ID, Tokenizer
from keras_transformer.errors import UserError

# Maximum numbers of pairs and of characters that are encoded at once.
_CHUNK, _CHUNK_CHARACTERS = 8192, 2**24
_LOGGER = logging.getLogger(__name__)


class EncodedCorpus:
    """Sentence pairs as ids: for each side, a flat array of ids and an array of offsets.

    Row `i` of the source is `source_ids[source_offsets[i]:source_offsets[i + 1]]`, and ends with
    EOS. The target has neither BOS nor EOS: `TokenBatches` adds them.

    Args:
        source_ids, target_ids: Uint16 (for up to 65,536 ids) or int32 `[tokens]`.
        source_offsets, target_offsets: Int64 `[pairs + 1]`.
        num_dropped_long, num_dropped_empty: Numbers of pairs left out as too long, or empty.
        mixture: The weights of the corpora of a `MixedCorpus`, in which `TokenBatches` draws the
            pairs of an epoch; None if an epoch has every pair once.
        rows: Int64 `[pairs]`, the index of each pair in this `MixedCorpus`; None without one.

    Example:

    >>> from keras_transformer.data import EncodedCorpus, SubwordTokenizer
    >>> tokenizer = SubwordTokenizer(["a", "b", "c"])
    >>> pairs = [("a b", "c"), ("", "a"), ("b", "a a a a")]
    >>> encoded = EncodedCorpus.from_corpus(pairs, tokenizer, max_length=4)
    >>> len(encoded), encoded.num_dropped_empty, encoded.num_dropped_long
    (1, 1, 1)
    >>> encoded.source_ids.tolist(), encoded.target_ids.tolist()
    ([4, 5, 3], [6])
    """

    def __init__(
        self,
        source_ids: np.ndarray,
        source_offsets: np.ndarray,
        target_ids: np.ndarray,
        target_offsets: np.ndarray,
        num_dropped_long: int = 0,
        num_dropped_empty: int = 0,
        mixture: Mixture | None = None,
        rows: np.ndarray | None = None,
    ):
        sides = {"source": (source_ids, source_offsets), "target": (target_ids, target_offsets)}
        for name, (ids, offsets) in sides.items():
            if offsets.ndim != 1 or not len(offsets) or offsets[0] or offsets[-1] != len(ids):
                rule = f"{name}_offsets must go from 0 to the number of ids, {len(ids)}"
                raise ValueError(f"{rule}. Received: {name}_offsets={offsets!r}")
        if len(source_offsets) != len(target_offsets):
            raise ValueError(
                "Both sides must have the same number of rows. Received: "
                f"{len(source_offsets) - 1} source rows, {len(target_offsets) - 1} target rows"
            )
        self.source_ids, self.target_ids = _as_ids(source_ids), _as_ids(target_ids)
        self.source_offsets = np.asarray(source_offsets, np.int64)
        self.target_offsets = np.asarray(target_offsets, np.int64)
        self.num_dropped_long = num_dropped_long
        self.num_dropped_empty = num_dropped_empty
        self.mixture, self.rows = mixture, rows

    @classmethod
    def from_corpus(
        cls,
        corpus: Iterable[tuple[str, str]],
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer | None = None,
        max_length: int | None = 256,
        progress: Callable[[int], object] | None = None,
        dropout: float = 0.0,
        seed: int = 0,
    ) -> "EncodedCorpus":
        """Returns a corpus encoded in one pass.

        Args:
            corpus: Yields pairs of `str`. Pairs with a blank side are left out and counted.
            source_tokenizer: Has `encode_batch(texts) -> list[list[int]]`.
            target_tokenizer: The tokenizer of the target; `None`: the same as for the source.
            max_length: Longest side in tokens, EOS counted, of pairs to keep; `None`: no limit.
            progress: Called after every few thousand pairs with the number of pairs read so far.
            dropout, seed: Of BPE-dropout, if `encode_batch` takes them.

        Raises:
            UserError: If no pair is left.
        """
        tokenizers = source_tokenizer, target_tokenizer or source_tokenizer
        blocks, counts = [], np.zeros(3, np.int64)
        for block in encode_blocks(corpus, tokenizers, max_length, dropout, seed):
            blocks.append(block)
            counts += len(block), block.num_dropped_long, block.num_dropped_empty
            if progress is not None:
                progress(int(counts.sum()))
        num_pairs, num_long, num_empty = counts.tolist()
        if not (dropout and num_pairs):  # Each epoch of BPE-dropout reads the same text.
            report_drops(num_pairs, num_long, num_empty, max_length)
        source, target = (_join(side) for side in zip(*(b.sides() for b in blocks), strict=True))
        encoded = cls(*source, *target, num_long, num_empty)
        if isinstance(corpus, MixedCorpus):
            encoded.rows = np.concatenate([block.rows for block in blocks])
            encoded.mixture = corpus.mixture(corpus.count_pairs(encoded.rows).tolist())
        return encoded

    def __len__(self) -> int:
        return len(self.source_offsets) - 1

    @property
    def source_lengths(self) -> np.ndarray:
        """int32 `[pairs]`: tokens of each source, EOS counted."""
        return _differences(self.source_offsets)

    @property
    def target_lengths(self) -> np.ndarray:
        """int32 `[pairs]`: labels of each target, which are its tokens and EOS."""
        lengths = _differences(self.target_offsets)
        lengths += 1
        return lengths

    @property
    def num_tokens(self) -> dict[str, int]:
        """The number of ids by side."""
        return {"source": len(self.source_ids), "target": len(self.target_ids)}

    def sides(self) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
        """Returns (ids, offsets) of the source and of the target."""
        return (self.source_ids, self.source_offsets), (self.target_ids, self.target_offsets)

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Returns source ids and offsets, target ids and offsets."""
        return self.source_ids, self.source_offsets, self.target_ids, self.target_offsets

    def up_to(self, max_length: int) -> "EncodedCorpus":
        """Returns the corpus that `from_corpus` returns for a smaller `max_length`.

        Args:
            max_length: As in `from_corpus`, which raises the same error.
        """
        keep = np.maximum(self.source_lengths, self.target_lengths) <= max_length
        if keep.all():
            return self
        num_pairs = int(keep.sum())
        num_long = self.num_dropped_long + len(self) - num_pairs
        report_drops(num_pairs, num_long, self.num_dropped_empty, max_length)

        def kept(ids, offsets) -> tuple[np.ndarray, np.ndarray]:
            lengths = np.diff(offsets)
            return ids[np.repeat(keep, lengths)], np.append(0, np.cumsum(lengths[keep]))

        (source, target), num_empty = self.sides(), self.num_dropped_empty
        mixture = None if self.mixture is None else self.mixture.kept(keep)
        rows = None if self.rows is None else self.rows[keep]
        return EncodedCorpus(*kept(*source), *kept(*target), num_long, num_empty, mixture, rows)


def _as_ids(ids):
    return ids if ids.dtype == np.uint16 else np.asarray(ids, np.int32)


def _differences(offsets):
    # Without a copy of the offsets, of which there may be 40 million.
    return np.subtract(offsets[1:], offsets[:-1], dtype=np.int32, casting="unsafe")


def corpus_chunks(corpus: Iterable[tuple[str, str]]) -> Iterator[list]:
    """Yields the pairs of a corpus in the lists of a few thousand that are encoded at once."""
    return line_chunks(corpus, _CHUNK, _CHUNK_CHARACTERS)


def encode_blocks(corpus, tokenizers, max_length, dropout=0.0, seed=0) -> Iterator[EncodedCorpus]:
    """Yields an `EncodedCorpus` for every few thousand pairs, in order; it may be empty."""
    if isinstance(corpus, MixedCorpus):
        check_tags(corpus, tokenizers[0])
    num_read = 0
    for number, chunk in enumerate(corpus_chunks(corpus)):
        texts = enumerate(chunk, start=num_read)
        read = {row: pair for row, pair in texts if pair[0].strip() and pair[1].strip()}
        num_read += len(chunk)
        encoded = []
        for side, tokenizer in enumerate(tokenizers):
            options = {}
            if dropout:
                # The two sides and every chunk draw different numbers.
                entropy = np.random.SeedSequence([seed, number, side])
                options = {"dropout": dropout, "seed": int(entropy.generate_state(1)[0])}
            encoded.append(tokenizer.encode_batch([p[side] for p in read.values()], **options))
        # A text of control characters is not whitespace, but can have no ids.
        lengths = [np.fromiter(map(len, side), np.int64, len(side)) for side in encoded]
        filled = np.minimum(*lengths) > 0
        keep = filled if max_length is None else filled & (np.maximum(*lengths) < max_length)
        sides: list[Any] = []
        for side, tokenizer in enumerate(tokenizers):
            offsets = np.append(0, np.cumsum(lengths[side][keep]))
            ids = itertools.chain.from_iterable(itertools.compress(encoded[side], keep))
            sides.append((np.fromiter(ids, dtype_of_ids(tokenizer), int(offsets[-1])), offsets))
        (source_ids, source_offsets), (target_ids, target_offsets) = sides
        yield EncodedCorpus(
            np.insert(source_ids, source_offsets[1:], EOS_ID),
            source_offsets + np.arange(len(source_offsets)),
            target_ids,
            target_offsets,
            num_dropped_long=int(filled.sum()) - int(keep.sum()),
            num_dropped_empty=len(chunk) - int(filled.sum()),
            rows=np.fromiter(read, np.int64, len(read))[keep],
        )


def dtype_of_ids(tokenizer: Tokenizer) -> type:
    """Returns the dtype that holds the ids of a vocabulary."""
    return np.uint16 if getattr(tokenizer, "vocab_size", 2**31) <= 2**16 else np.int32


def _join(blocks) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ids and the offsets of a side of all blocks."""
    lengths = np.concatenate([np.diff(offsets) for _, offsets in blocks])
    return np.concatenate([ids for ids, _ in blocks]), np.append(0, np.cumsum(lengths))


def report_drops(num_pairs: int, num_long: int, num_empty: int, max_length: int | None) -> None:
    """Logs the numbers of pairs that were left out; raises a `UserError` if no other is left."""
    num_read = num_pairs + num_long + num_empty
    if not num_pairs:
        dropped = f"{num_empty} have an empty side, {num_long} are longer than {max_length} tokens"
        raise UserError(f"No sentence pair is left of {num_read}: {dropped}.")
    if num_empty:
        _LOGGER.warning("%d of %d pairs have an empty side and are left out.", num_empty, num_read)
    if num_long:
        text = "%d of %d pairs are longer than %d tokens and are left out."
        _LOGGER.warning(text, num_long, num_read, max_length)
