"""A corpus as token ids in flat arrays."""

import array
import itertools
import logging
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from keras_transformer.data.special_tokens import EOS_ID
from keras_transformer.errors import UserError

_CHUNK = 8192
_LOGGER = logging.getLogger(__name__)


class EncodedCorpus:
    """Sentence pairs as ids: one flat array of ids and one of offsets a side.

    Row `i` of the source is `source_ids[source_offsets[i]:source_offsets[i + 1]]`, and ends with
    EOS. The target has neither BOS nor EOS: `TokenBatches` puts BOS before the decoder's input
    and EOS behind the labels.

    Args:
        source_ids: uint16 or int32 `[source tokens]`. Half the memory, where 65,536 ids are enough.
        source_offsets: int64 `[pairs + 1]`.
        target_ids: uint16 or int32 `[target tokens]`.
        target_offsets: int64 `[pairs + 1]`.
        num_dropped_long: pairs that were left out because a side was too long.
        num_dropped_empty: pairs that were left out because a side was empty.

    Example:

    >>> from keras_transformer.data import EncodedCorpus, PairsCorpus, SubwordTokenizer
    >>> tokenizer = SubwordTokenizer(["a", "b", "c"])
    >>> corpus = PairsCorpus([("a b", "c"), ("", "a"), ("b", "a a a a")])
    >>> encoded = EncodedCorpus.from_corpus(corpus, tokenizer, max_length=4)
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
    ):
        for name, ids, offsets in (
            ("source", source_ids, source_offsets),
            ("target", target_ids, target_offsets),
        ):
            if offsets.ndim != 1 or not len(offsets) or offsets[0] or offsets[-1] != len(ids):
                raise ValueError(
                    f"{name}_offsets must go from 0 to the number of ids, {len(ids)}. "
                    f"Received: {name}_offsets={offsets!r}"
                )
        if len(source_offsets) != len(target_offsets):
            raise ValueError(
                "Both sides must have the same number of rows. Received: "
                f"{len(source_offsets) - 1} source rows, {len(target_offsets) - 1} target rows"
            )
        self.source_ids = _as_ids(source_ids)
        self.source_offsets = np.asarray(source_offsets, np.int64)
        self.target_ids = _as_ids(target_ids)
        self.target_offsets = np.asarray(target_offsets, np.int64)
        self.num_dropped_long = num_dropped_long
        self.num_dropped_empty = num_dropped_empty

    @classmethod
    def from_corpus(
        cls,
        corpus: Iterable[tuple[str, str]],
        source_tokenizer,
        target_tokenizer=None,
        max_length: int | None = 256,
        progress: Callable[[int], object] | None = None,
        dropout: float = 0.0,
        seed: int = 0,
    ) -> "EncodedCorpus":
        """Encodes a corpus in one pass.

        Args:
            corpus: yields pairs of `str`. Pairs with a side that is empty, or only whitespace, are
                left out and counted.
            source_tokenizer: has `encode_batch(texts) -> list[list[int]]`.
            target_tokenizer: likewise; `None`: the same as for the source.
            max_length: pairs with more tokens on either side, EOS counted, are left out and
                counted; `None`: no limit.
            progress: called after every few thousand pairs with the number of pairs read so far.
            dropout: of merges (BPE-dropout), for tokenizers whose `encode_batch` takes it.
            seed: of that dropout.

        Returns:
            `EncodedCorpus`.

        Raises:
            UserError: if no pair is left.
        """
        target_tokenizer = target_tokenizer or source_tokenizer
        sides = [
            _Side(getattr(tokenizer, "vocab_size", None))
            for tokenizer in (source_tokenizer, target_tokenizer)
        ]
        num_read = num_long = num_empty = 0
        for number, chunk in enumerate(_chunks(corpus, _CHUNK)):
            num_read += len(chunk)
            pairs = [(source, target) for source, target in chunk if source.strip()]
            pairs = [(source, target) for source, target in pairs if target.strip()]
            source_rows = _encode(source_tokenizer, pairs, 0, dropout, (seed, number))
            target_rows = _encode(target_tokenizer, pairs, 1, dropout, (seed, number))
            # A control character alone is not whitespace and has no ids either.
            lengths = [_lengths(source_rows), _lengths(target_rows)]
            filled = (lengths[0] > 0) & (lengths[1] > 0)
            longest = np.maximum(*lengths) + 1
            keep = filled if max_length is None else filled & (longest <= max_length)
            num_empty += len(chunk) - int(filled.sum())
            num_long += int(filled.sum()) - int(keep.sum())
            sides[0].extend(itertools.compress(source_rows, keep), end=[EOS_ID])
            sides[1].extend(itertools.compress(target_rows, keep), end=[])
            if progress is not None:
                progress(num_read)
        encoded = cls(
            *sides[0].arrays(),
            *sides[1].arrays(),
            num_dropped_long=num_long,
            num_dropped_empty=num_empty,
        )
        encoded._report(num_read, max_length)
        return encoded

    def _report(self, num_read: int, max_length: int | None) -> None:
        if not len(self):
            raise UserError(
                f"No sentence pair is left of {num_read}: {self.num_dropped_empty} have an empty "
                f"side, {self.num_dropped_long} are longer than {max_length} tokens."
            )
        if self.num_dropped_empty:
            _LOGGER.warning(
                "%d of %d pairs have an empty side and are left out.",
                self.num_dropped_empty,
                num_read,
            )
        if self.num_dropped_long:
            _LOGGER.warning(
                "%d of %d pairs are longer than %d tokens and are left out.",
                self.num_dropped_long,
                num_read,
                max_length,
            )

    def __len__(self) -> int:
        return len(self.source_offsets) - 1

    @property
    def source_lengths(self) -> np.ndarray:
        """int64 `[pairs]`: tokens of each source, EOS counted."""
        return np.diff(self.source_offsets)

    @property
    def target_lengths(self) -> np.ndarray:
        """int64 `[pairs]`: tokens of each target with EOS, that is of the labels."""
        return np.diff(self.target_offsets) + 1

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Returns source ids and offsets, target ids and offsets."""
        return self.source_ids, self.source_offsets, self.target_ids, self.target_offsets


class _Side:
    """Grows in place: a list of arrays would need twice the memory when it is joined."""

    def __init__(self, vocab_size: int | None):
        is_narrow = vocab_size is not None and vocab_size <= 2**16
        self._dtype = np.uint16 if is_narrow else np.int32
        self._ids = array.array("H" if is_narrow else "i")
        self._offsets = array.array("q", [0])

    def extend(self, rows: Iterable[Sequence[int]], end: list[int]) -> None:
        for row in rows:
            self._ids.extend(row)
            self._ids.extend(end)
            self._offsets.append(len(self._ids))

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        if not self._ids:
            return np.zeros(0, self._dtype), np.asarray(self._offsets, np.int64)
        return np.frombuffer(self._ids, self._dtype), np.frombuffer(self._offsets, np.int64)


def _as_ids(ids):
    return np.asarray(ids, ids.dtype if ids.dtype == np.uint16 else np.int32)


def _chunks(items: Iterable, size: int):
    iterator = iter(items)
    while chunk := list(itertools.islice(iterator, size)):
        yield chunk


def _lengths(rows: Sequence[Sequence[int]]) -> np.ndarray:
    return np.fromiter(map(len, rows), np.int64, len(rows))


def _encode(tokenizer, pairs, side: int, dropout: float, entropy: tuple[int, int]):
    texts = [pair[side] for pair in pairs]
    if not dropout:
        return tokenizer.encode_batch(texts)
    # The two sides and every chunk draw numbers of their own.
    seed = int(np.random.SeedSequence([*entropy, side]).generate_state(1)[0])
    return tokenizer.encode_batch(texts, dropout=dropout, seed=seed)
