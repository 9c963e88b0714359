"""`Shortlist`: the target tokens that a translation may have, chosen by its source."""

import dataclasses
import os
import pathlib
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_transformer.checks import check_positive_integer
from keras_transformer.data.batch_arrays import ranges
from keras_transformer.data.encoded_corpus import EncodedCorpus
from keras_transformer.data.tokenizer import SPECIAL_PIECES
from keras_transformer.data.tokenizer_pair import TokenizerPair
from keras_transformer.decoding.loop import SMALLEST_DYNAMIC_SIZE
from keras_transformer.errors import UserError
from keras_transformer.files import atomic_files, current_file
from keras_transformer.layouts import SHORTLIST_FILE

# Allowed numbers of tokens; only a few, because each number compiles more kernels.
_SCALES = SMALLEST_DYNAMIC_SIZE, SMALLEST_DYNAMIC_SIZE * 3 // 2
SIZES = tuple(sorted(scale * 2**exponent for scale in _SCALES for exponent in range(16)))
# Maximum numbers of sentence pairs to learn from, and of pairs of tokens in a chunk.
_MAX_PAIRS, _MAX_CELLS, _CHUNK = 500_000, 2 * 10**8, 2**22
_NUM_ITERATIONS = 5
_MAX_CANDIDATES = 1000  # The maximum for a source token.


@dataclasses.dataclass(frozen=True, eq=False)
class Shortlist:
    """The target tokens that a translation may have, chosen by the tokens of its source.

    They are the most frequent target tokens, and the most probable translations of each source
    token in the batch, a few hundred in all. A search computes no other logits, so that the
    probabilities of these tokens sum to 1.

    Args:
        candidates: int32 `[source vocabulary, n]`, the translations of each source token.
        frequent: int32 `[m]`, tokens that are always allowed.
        vocab_size: Size of the target vocabulary.
        checksum: Checksum of the vocabularies that it was learned with.

    Example:

    >>> from keras_transformer.data import EncodedCorpus, SubwordTokenizer
    >>> from keras_transformer.data.tokenizer_pair import TokenizerPair
    >>> from keras_transformer.inference import Shortlist
    >>> english = SubwordTokenizer(["a", "red", "house"])
    >>> german = SubwordTokenizer(["ein", "rotes", "Haus", *map(str, range(600))])
    >>> pairs = [("house", "Haus"), ("a house", "ein Haus"), ("a red house", "ein rotes Haus")]
    >>> corpus = EncodedCorpus.from_corpus(pairs, english, german)
    >>> shortlist = Shortlist.learn(corpus, TokenizerPair(english, german), num_candidates=1)
    >>> [german.decode(ids) for ids in shortlist.candidates[4:, 1:]]
    ['ein', 'rotes', 'Haus']

    Reference: Jean et al. (2015), https://aclanthology.org/P15-1001, section 3.3.
    """

    candidates: np.ndarray
    frequent: np.ndarray
    vocab_size: int
    checksum: int

    @classmethod
    def learn(
        cls,
        corpus: EncodedCorpus,
        tokenizers: TokenizerPair,
        num_candidates: int = 50,
        num_frequent: int = 100,
    ) -> "Shortlist":
        """Returns a shortlist learned from sentence pairs with IBM model 1.

        Args:
            corpus: An `EncodedCorpus` of the training text. At most 500,000 of its pairs are read.
            tokenizers: `TokenizerPair` of the model.
            num_candidates: Number of translations of each source token. With a shared vocabulary,
                each source token is also its own candidate.
            num_frequent: Number of tokens that are always allowed, the most frequent ones.

        Raises:
            ValueError: If a number is not positive, or `num_candidates` is above 1000.

        Reference: Brown et al. (1993), https://aclanthology.org/J93-2003, section 4.1.
        """
        check_positive_integer("num_candidates", num_candidates, _MAX_CANDIDATES)
        check_positive_integer("num_frequent", num_frequent)
        source_size, target_size = tokenizers.source.vocab_size, tokenizers.of_target.vocab_size
        itself = np.arange(source_size) if tokenizers.have_same_ids else np.zeros(source_size)
        candidates = np.tile(itself.astype("int32")[:, None], 1 + num_candidates)
        sources, targets, probabilities = _translations(corpus, source_size, target_size)
        order = np.lexsort((-probabilities, sources))
        sources, targets = sources[order], targets[order]
        ranks = np.arange(len(sources)) - np.searchsorted(sources, sources)
        is_kept = ranks < num_candidates
        candidates[sources[is_kept], 1 + ranks[is_kept]] = targets[is_kept]
        counts = np.bincount(corpus.target_ids, minlength=target_size)
        counts[: len(SPECIAL_PIECES)] = 0
        frequent = np.argsort(-counts, kind="stable")[:num_frequent]
        frequent = np.concatenate([np.arange(len(SPECIAL_PIECES)), frequent]).astype("int32")
        return cls(candidates, frequent, target_size, _checksum(tokenizers))

    def token_ids(
        self, sources: Sequence[Sequence[int]], prefixes: Sequence[Sequence[int]] = ()
    ) -> np.ndarray | None:
        """Returns the tokens that the translations of a batch may have, int32 `[columns]`.

        They ascend, and are filled up with low ids to one of `SIZES` or the whole vocabulary. None
        for a vocabulary smaller than all `SIZES`.

        Args:
            sources, prefixes: Ids of each source, and ids that translations begin with.
        """
        if self.vocab_size < SIZES[0]:
            return None
        is_listed = np.zeros(self.vocab_size, bool)
        is_listed[self.frequent] = True
        for ids in sources:
            is_listed[self.candidates[ids]] = True
        for ids in prefixes:
            is_listed[ids] = True
        listed = np.flatnonzero(is_listed)
        size = min(self.vocab_size, min(size for size in SIZES if size >= len(listed)))
        others = np.flatnonzero(~is_listed)[: size - len(listed)]
        return np.sort(np.concatenate([listed, others])).astype("int32")

    def token_ids_in_graph(self, source: Any, prefixes: Any = ()) -> Any:
        """Returns `token_ids`, as operations of TensorFlow.

        Args:
            source: Ids, int32 `[batch, length]`, with padding.
            prefixes: Ids, int32 of any shape, with padding.
        """
        import tensorflow as tf

        if self.vocab_size < SIZES[0]:
            return None
        candidates = tf.reshape(tf.gather(self.candidates, source), [-1])
        prefixes = tf.reshape(tf.cast(prefixes, tf.int32), [-1])
        listed = tf.concat([self.frequent, candidates, prefixes], axis=0)[:, None]
        is_listed = tf.zeros([self.vocab_size], tf.bool)
        is_listed = tf.tensor_scatter_nd_update(is_listed, listed, tf.fill([tf.size(listed)], True))
        sizes = tf.constant(SIZES)
        num_listed = tf.reduce_sum(tf.cast(is_listed, tf.int32))
        large_enough = tf.boolean_mask(sizes, sizes >= num_listed)
        size = tf.minimum(tf.reduce_min(large_enough), self.vocab_size)
        others = tf.where(~is_listed)[: size - num_listed]
        listed = tf.concat([tf.where(is_listed), others], axis=0)[:, 0]
        return tf.sort(tf.cast(listed, tf.int32))

    def save(self, directory: str | os.PathLike) -> pathlib.Path:
        """Writes `shortlist.npz` into a model directory, and returns its path.

        Args:
            directory: The model directory.
        """
        with atomic_files(directory) as aside:
            np.savez_compressed(aside / SHORTLIST_FILE, **dataclasses.asdict(self))
        return pathlib.Path(directory) / SHORTLIST_FILE

    @classmethod
    def load(cls, directory: str | os.PathLike, tokenizers: TokenizerPair) -> "Shortlist":
        """Returns the shortlist in a model directory.

        Args:
            directory: The model directory.
            tokenizers: The model's `TokenizerPair`.

        Raises:
            UserError: If there is none, it is damaged, or it was learned with other vocabularies.
        """
        path = current_file(directory, SHORTLIST_FILE)
        if not path.is_file():
            advice = "`keras-transformer shortlist` makes one from the training text"
            raise UserError(f"{path} is missing; {advice}.")
        sizes = tokenizers.source.vocab_size, tokenizers.of_target.vocab_size
        try:
            with path.open("rb") as file, np.load(file) as arrays:
                values = {field.name: arrays[field.name] for field in dataclasses.fields(cls)}
            numbers = {name: int(values[name]) for name in ("vocab_size", "checksum")}
            shortlist = cls(**values | numbers)
            if shortlist.checksum == _checksum(tokenizers):
                shortlist._check(*sizes)
                return shortlist
        except Exception as error:
            raise UserError(f"The shortlist is damaged: {str(path)!r}") from error
        rule = "was learned with other vocabularies or languages than the model's: learn it again"
        raise UserError(f"{path} {rule}.")

    def _check(self, source_size, target_size):
        """Raises a `ValueError` unless the arrays have ids of the target for each source token."""
        arrays = self.candidates, self.frequent
        are_ids = all(
            array.dtype == "int32" and array.min() >= 0 and array.max() < target_size
            for array in arrays
        )
        shapes = len(self.candidates), self.vocab_size, *(array.ndim for array in arrays)
        if not are_ids or shapes != (source_size, target_size, 2, 1):
            raise ValueError("other arrays than those of a shortlist")


def _checksum(tokenizers):
    pieces = [each.pieces(range(each.vocab_size)) for each in tokenizers.by_name().values()]
    languages = [each.language for each in tokenizers.by_name().values() if each.language]
    return zlib.crc32(repr(pieces + languages if languages else pieces).encode())


def _translations(corpus, source_size, target_size):
    """Returns pairs of a source and a target token, and p(target | source) of IBM model 1."""
    keys = np.unique(np.concatenate([np.unique(pairs) for pairs, _ in _cells(corpus, target_size)]))
    cells = [
        (np.searchsorted(keys, pairs).astype("int32"), starts)
        for pairs, starts in _cells(corpus, target_size)
    ]
    sources, targets = keys // target_size, keys % target_size
    probabilities = np.ones(len(keys))
    for _ in range(_NUM_ITERATIONS):
        counts = np.zeros(len(keys))
        for indices, starts in cells:
            weights = probabilities[indices]
            # Divides each target token among the source tokens of its sentence (equation 17).
            sums = np.add.reduceat(weights, starts)
            lengths = np.diff(starts, append=len(weights))
            counts += np.bincount(indices, weights / np.repeat(sums, lengths), len(keys))
        probabilities = counts / np.bincount(sources, counts, source_size)[sources]
    return sources, targets, probabilities


def _cells(corpus, target_size):
    """Yields the token pairs of sentence pairs in chunks, one target token after the other.

    A pair is the number `source * target_size + target`. The second array has the index of the
    first pair of each target token. EOS of the source stands for the empty word of IBM model 1.
    """
    sizes = np.diff(corpus.source_offsets) * np.diff(corpus.target_offsets)
    step = max(-(-len(corpus) // _MAX_PAIRS), -(-int(sizes.sum(dtype="int64")) // _MAX_CELLS))
    pairs = np.arange(0, len(corpus), step)
    source_lengths, target_lengths = (
        np.diff(offsets)[pairs] for offsets in (corpus.source_offsets, corpus.target_offsets)
    )
    ends = np.cumsum(source_lengths * target_lengths)
    limits = np.searchsorted(ends, np.arange(_CHUNK, ends[-1], _CHUNK))
    for chunk in np.split(np.arange(len(pairs)), np.unique(limits)):
        num_targets = target_lengths[chunk]
        targets = corpus.target_ids[ranges(corpus.target_offsets[pairs[chunk]], num_targets)]
        # The source tokens of each target token.
        num_sources = np.repeat(source_lengths[chunk], num_targets)
        first = np.repeat(corpus.source_offsets[pairs[chunk]], num_targets)
        sources = corpus.source_ids[ranges(first, num_sources)].astype("int64")
        starts = np.cumsum(num_sources) - num_sources
        if len(sources):
            yield sources * target_size + np.repeat(targets, num_sources), starts
