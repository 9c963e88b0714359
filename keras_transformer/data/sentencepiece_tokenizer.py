"""SentencePiece vocabularies, in Python and in a graph, and splits with BPE-dropout."""

import functools
import heapq
import itertools
import math
import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import sentencepiece

from keras_transformer.data.tokenizer import BOS_ID, EOS_ID, PAD_ID, SPACE, UNK_ID, Tokenizer
from keras_transformer.errors import UserError

_DAMAGED = "This is not a SentencePiece model, or a damaged one."
_SCORE_STEPS = 2**12  # of 1. Sums up to 4,096 are exact in float32.
_MAX_CACHED_SPLITS = 2**17
# Maximum length of a word times `dropout`. The splits of longer words rarely occur twice, so they
# are not cached.
_CACHED_DROPS = 2.0


class SentencePieceTokenizer(Tokenizer):
    """Turns text into subword ids and back with a SentencePiece model.

    The reserved ids are padding 0, unknown 1, BOS 2, EOS 3; no text maps to them, not even `</s>`.

    Args:
        model: `bytes`, the serialized SentencePiece model.

    Raises:
        UserError: If `model` is not a complete SentencePiece model, or reserves other ids.

    Example:

    >>> lines = ["a red house", "a blue house", "the red door", "the blue door"]
    >>> tokenizer = keras_transformer.data.train_sentencepiece(lines, vocab_size=290)
    >>> tokenizer.decode(tokenizer.encode("the red house"))
    'the red house'

    Reference: Kudo and Richardson, 2018, "SentencePiece", https://arxiv.org/abs/1808.06226.
    """

    suffix = ".model"

    def __init__(self, model: bytes):
        self.model = bytes(model)
        self._processor = load_processor(self.model)
        _check_reserved_ids(self._processor)

    def __reduce__(self):
        return type(self), (self.model,)

    @property
    def vocab_size(self) -> int:
        return self._processor.get_piece_size()

    @functools.cached_property
    def symbols(self) -> tuple[str, ...]:
        """SentencePiece's user-defined symbols: pieces that no text splits, such as `>>fra<<`."""
        pieces = parse_model(self.model).pieces
        return tuple(piece.piece for piece in pieces if piece.type == piece.USER_DEFINED)

    @property
    def model_type(self) -> str:
        """The algorithm that split the text: `"bpe"`, `"unigram"`, `"word"` or `"char"`."""
        specification = parse_model(self.model).trainer_spec
        return specification.ModelType.Name(specification.model_type).lower()

    def encode_batch(
        self, texts: Sequence[str], dropout: float = 0.0, seed: int | None = None
    ) -> list[list[int]]:
        """Returns the ids of every text, without BOS and EOS.

        Args:
            texts: Sequence of `str`. Lone surrogates, which UTF-8 cannot encode, become U+FFFD.
            dropout: Probability of leaving out a merge (BPE-dropout), which regularizes training.
            seed: Needed with dropout; the ids are a function of `texts`, `dropout` and `seed`.

        Raises:
            ValueError: If `dropout` is not in [0, 1), or above 0 without a seed or a BPE model.

        Reference: Provilkov et al., 2020, "BPE-Dropout", https://arxiv.org/abs/1910.13267.
        """
        texts = list(texts)
        if not 0.0 <= dropout < 1.0:
            raise ValueError(f"dropout must be in [0, 1). Received: {dropout=}")
        if dropout and self.model_type != "bpe":
            received = f"{dropout=} for a model of type {self.model_type!r}"
            raise ValueError(f"Dropout of merges needs a BPE model. Received: {received}")
        if dropout and seed is None:
            raise ValueError("Dropout of merges needs a seed. Received: seed=None")
        encode: Callable = self._processor.encode
        if dropout:
            encode = functools.partial(self._bpe_dropout.encode, dropout=dropout, seed=seed)
        try:
            return encode(texts)
        except (RuntimeError, TypeError):  # sentencepiece cannot take lone surrogates
            return encode([without_surrogates(text) for text in texts])

    @functools.cached_property
    def _bpe_dropout(self):
        return BpeDropout(self._processor, parse_model(self.model))

    def _decode(self, ids):
        return self._processor.decode(ids)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [self._processor.id_to_piece(int(token)) for token in ids]

    def spell(self, pieces: Sequence[str]) -> list[list[int]]:
        return spelling_processor(self.model).encode([p.replace(SPACE, " ") for p in pieces])

    def _file_content(self):
        return self.model

    def in_graph(self) -> Any:
        from keras_transformer.data.graph_tokenizers import graph_sentencepiece

        return graph_sentencepiece(self.model, self.vocab_size)


def load_processor(model: bytes) -> sentencepiece.SentencePieceProcessor:
    """Returns the processor of a SentencePiece model; raises a `UserError` if it is damaged."""
    message = parse_model(model)
    try:
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        processor.id_to_piece(list(range(processor.get_piece_size())))  # are they UTF-8?
    except Exception as error:  # several types
        raise UserError(_DAMAGED) from error
    # A file cut between two pieces is still a valid message, but what follows the pieces is gone.
    if not (message.HasField("trainer_spec") and message.HasField("normalizer_spec")):
        raise UserError("The SentencePiece model is incomplete.")
    return processor


def _check_reserved_ids(processor):
    ids = processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id()
    if ids != (PAD_ID, UNK_ID, BOS_ID, EOS_ID):
        raise UserError(
            "A SentencePiece model must be trained with pad_id=0, unk_id=1, bos_id=2, eos_id=3. "
            "Received: pad_id={}, unk_id={}, bos_id={}, eos_id={}".format(*ids)
        )


@functools.lru_cache(maxsize=4)
def spelling_processor(model: bytes) -> sentencepiece.SentencePieceProcessor:
    """Returns a processor that adds no space in front of a text, and removes none."""
    message = parse_model(model)
    message.normalizer_spec.add_dummy_prefix = False
    message.normalizer_spec.remove_extra_whitespaces = False
    return sentencepiece.SentencePieceProcessor(model_proto=message.SerializeToString())


def parse_model(model: bytes) -> Any:
    """Returns the message of a SentencePiece model; raises a `UserError` if it is damaged."""
    from sentencepiece import sentencepiece_model_pb2

    try:
        return sentencepiece_model_pb2.ModelProto.FromString(model)
    except Exception as error:  # protobuf's own
        raise UserError(_DAMAGED) from error


def rounded_scores(model: bytes) -> bytes:
    """Returns a SentencePiece model whose scores are rounded, so that their sums are exact."""
    message = parse_model(model)
    for piece in message.pieces:
        if math.isfinite(piece.score):
            piece.score = round(piece.score * _SCORE_STEPS) / _SCORE_STEPS
    return message.SerializeToString()


def without_surrogates(text: str) -> str:
    """Returns text that UTF-8 can encode: lone surrogates become U+FFFD."""
    if not isinstance(text, str):
        raise TypeError(f"A tokenizer encodes str. Received: {text=}")
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


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
