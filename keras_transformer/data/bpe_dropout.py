"""BPE-dropout: splits of a BPE model in which merges are left out at random."""

import functools
import heapq
import itertools
import math
import random
import re
from collections.abc import Callable, Iterable, Iterator

import sentencepiece

from keras_transformer.data.tokenizer import SPACE

_MAX_CACHED_SPLITS = 2**17
# Maximum length of a word times `dropout`. The splits of longer words rarely occur twice, so they
# are not cached.
_CACHED_DROPS = 2.0


class BpeDropout:
    """Splits text with a BPE model and leaves out each merge with a given probability.

    The algorithm is sentencepiece's: the best possible merge is tried next, and left out for good
    with the probability `dropout`. The random numbers are Python's, because those of sentencepiece
    differ from process to process since version 0.2.2. `model` is the processor's `ModelProto`.

    Reference: Provilkov et al., 2020, "BPE-Dropout", https://arxiv.org/abs/1910.13267.
    """

    def __init__(self, processor: sentencepiece.SentencePieceProcessor, model):
        kinds = sentencepiece.sentencepiece_model_pb2.ModelProto.SentencePiece
        mergeable = kinds.NORMAL, kinds.USER_DEFINED
        self._normalize = processor.normalize
        self._unknown_id = processor.unk_id()
        self._has_bytes = model.trainer_spec.byte_fallback
        self._bytes = [processor.piece_to_id(f"<0x{byte:02X}>") for byte in range(256)]
        self._pieces = {
            piece.piece: (-piece.score, number)
            for number, piece in enumerate(model.pieces)
            if piece.type in mergeable
        }
        # User-defined pieces are found first and take part in no merge.
        self._whole = {piece.piece for piece in model.pieces if piece.type == kinds.USER_DEFINED}
        longest_first = sorted(self._whole, key=len, reverse=True)
        self._symbols = re.compile("|".join([*map(re.escape, longest_first), "."]), re.DOTALL)
        # If no piece crosses a space, words are split independently.
        crosses = any(SPACE in piece[1:] for piece in self._pieces)
        self._words = re.compile(".+" if crosses else f"{SPACE}?[^{SPACE}]+|{SPACE}", re.DOTALL)
        self._cached_split = functools.lru_cache(_MAX_CACHED_SPLITS)(self._split)

    def encode(self, texts: Iterable[str], dropout: float, seed: int) -> list[list[int]]:
        """Returns the ids of every text; a function of the arguments and the model alone."""
        gaps, longest = _gaps(dropout, random.Random(seed)), _CACHED_DROPS / dropout
        return [self._encode_text(text, gaps, longest) for text in self._normalize(list(texts))]

    def _encode_text(self, text, gaps, longest):
        ids = []
        for word in self._words.findall(text):
            ids += self._encode_word(word, gaps, len(word) <= longest)
        if self._has_bytes:
            return ids
        # Adjacent unknown characters are one unknown piece.
        pairs = itertools.pairwise([None, *ids])
        return [token for before, token in pairs if not before == token == self._unknown_id]

    def _encode_word(self, word, gaps, is_cached):
        """Draws the positions of the merges to leave out, and returns the ids."""
        split: Callable = self._cached_split
        dropped: frozenset[int] = frozenset()
        position = next(gaps)
        if not is_cached:
            # Draws all positions first, to split the word only once. A merge makes at most two
            # others possible, so that fewer than three are tried for each character.
            split = self._split
            while position < 3 * len(word):
                dropped |= {position}
                position += 1 + next(gaps)
        while True:
            ids, num_tried = split(word, dropped)
            if position >= num_tried:
                return ids
            dropped |= {position}
            position += 1 + next(gaps)

    def _split(self, word, dropped):
        """Returns ids and the number of merges tried; those numbered in `dropped` are left out."""
        symbols, whole = self._symbols.findall(word), self._whole
        before = list(range(-1, len(symbols) - 1))  # index of the previous symbol
        after = [*range(1, len(symbols)), -1]
        agenda: list[tuple[int, int, int, str]] = []

        def add(left, right):
            if left < 0 or right < 0:
                return
            merged = symbols[left] + symbols[right]
            known = self._pieces.get(merged)
            if known and (not whole or whole.isdisjoint((symbols[left], symbols[right]))):
                heapq.heappush(agenda, (known[0], left, right, merged))

        for right in range(1, len(symbols)):
            add(right - 1, right)
        num_tried = 0
        while agenda:
            _, left, right, merged = heapq.heappop(agenda)
            if not symbols[left] or not symbols[right] or symbols[left] + symbols[right] != merged:
                continue  # Another merge took one of the two.
            num_tried += 1
            if num_tried - 1 in dropped:
                continue
            symbols[left], symbols[right] = merged, ""
            after[left] = after[right]
            if after[right] >= 0:
                before[after[right]] = left
            add(before[left], left)
            add(left, after[left])
        return [token for symbol in symbols if symbol for token in self._ids(symbol)], num_tried

    def _ids(self, symbol):
        if symbol in self._pieces:
            return [self._pieces[symbol][1]]
        if self._has_bytes:
            return [self._bytes[byte] for byte in symbol.encode()]
        return [self._unknown_id]


def _gaps(dropout: float, generator: random.Random) -> Iterator[int]:
    """Yields the numbers of merges that are kept between two that are left out."""
    scale = 1.0 / math.log1p(-dropout)
    while True:
        yield int(math.log(1.0 - generator.random()) * scale)
