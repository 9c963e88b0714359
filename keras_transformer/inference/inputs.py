"""Inputs of a pipeline: checks and encodes texts, and splits, cuts or refuses long ones."""

import logging
import textwrap
from collections.abc import Sequence

from keras_transformer.errors import UserError
from keras_transformer.inference.sentence_profile import SentenceProfile
from keras_transformer.inference.sentence_splitting import TextPart, join_answers, split_text
from keras_transformer.layers.checks import check_choice


def checked_texts(name: str, texts: Sequence[str]) -> list[str]:
    """Returns texts as a list; raises a ValueError if one of them is not a string."""
    if isinstance(texts, str | bytes):
        rule = f"{name} must be a list of strings; put one text into a list"
        raise ValueError(f"{rule}. Received: {name}={texts!r}")
    texts = list(texts)
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            message = f"{name} must be a list of strings."
            raise ValueError(f"{message} Received: {name}[{index}]={text!r}")
    return texts


def checked_prefixes(prefixes: Sequence[str], num_texts: int) -> list[str]:
    """Returns prefixes as a list; raises a ValueError unless there is one for each text."""
    prefixes = checked_texts("prefixes", prefixes)
    if len(prefixes) != num_texts:
        rule = "There must be as many prefixes as texts"
        raise ValueError(f"{rule}. Received: {len(prefixes)} prefixes and {num_texts} texts")
    return prefixes


def encode_words(tokenizer, name: str, texts) -> tuple[list[list[int]], list[list[int]]]:
    """Returns the ids of each text, and the number of ids of each of its words."""
    lines = [text.split() for text in checked_texts(name, texts)]
    encoded = iter(tokenizer.encode_batch([word for words in lines for word in words]))
    pieces = [[next(encoded) for _ in words] for words in lines]
    ids = [[token for word in words for token in word] for words in pieces]
    return ids, [[len(word) for word in words] for words in pieces]


def encode_prefixes(
    tokenizer, prefixes: Sequence[str] | None, subwords: list[list[int]], limits: list[int]
) -> list[list[int]]:
    """Returns the ids that each translation begins with; none for a source without subwords."""
    if prefixes is None:
        return [[] for _ in subwords]
    texts = checked_prefixes(prefixes, len(subwords))
    encoded = tokenizer.encode_batch(texts)
    encoded = [ids if source else [] for ids, source in zip(encoded, subwords, strict=True)]
    for text, ids, limit in zip(texts, encoded, limits, strict=True):
        if ids and len(ids) >= limit:
            raise UserError(
                f"The prefix {textwrap.shorten(text, 60)!r} has {len(ids)} tokens; its translation "
                f"may have at most {limit}, the end of the sentence included."
            )
    return encoded


def check_targets(method: str, sources, targets, max_length: int | None) -> None:
    """Raises an error if their numbers differ, or a target is longer than the model's positions."""
    if len(sources) != len(targets):
        rule = f"{method}() needs as many targets as sources"
        raise ValueError(f"{rule}. Received: {len(sources)} sources and {len(targets)} targets")
    for index, ids in enumerate(targets):
        if max_length is not None and len(ids) + 1 > max_length:
            raise UserError(
                f"Target {index} (counted from 0) has {len(ids) + 1} tokens with EOS; the "
                f"model has learned positions for at most {max_length}."
            )


_LOGGER = logging.getLogger(__name__)

CUT_ADVICE = "; split them into sentences first, so that nothing is lost"
LARGEST_LENGTH = 2**14  # A search that never finds an end takes a step for each token.


class SourceParts:
    """The parts of texts that a model reads: one for each text, or several for a long text.

    Texts of more than `max_subwords` subwords are split, cut or refused, see `long_texts` of
    `Translator.translate`. With the `profile` of the training text, `"split"` also splits texts
    that have more sentences than was usual in training. `ids` has the ids of each part, without
    EOS, and `owners` the index of its text. `num_split` is the number of texts in several parts.
    """

    def __init__(
        self,
        texts,
        tokenizer,
        max_subwords: int,
        long_texts: str,
        profile: SentenceProfile | None = None,
    ):
        check_choice("long_texts", long_texts, ("split", "truncate", "error"))
        texts = checked_texts("texts", texts)
        encoded = tokenizer.encode_batch(texts)
        is_long = [len(ids) > max_subwords for ids in encoded]
        if long_texts == "error" and any(is_long):
            index = is_long.index(True)
            raise UserError(
                f"Text {index} (counted from 0) has {len(encoded[index]):,} subwords; the model "
                f"reads at most {max_subwords:,}. Shorten it, or use long_texts='split' or "
                "'truncate'."
            )
        self._parts = [[TextPart(*pair)] for pair in zip(texts, encoded, strict=True)]
        if long_texts == "split":
            self._split(tokenizer, max(max_subwords, 1), profile)
        self.num_split = sum(len(parts) > 1 for parts in self._parts)
        self.owners = [index for index, parts in enumerate(self._parts) for _ in parts]
        # After a split, this cuts only a character that has more subwords than the model reads.
        self.ids = cut_sources([part.ids for parts in self._parts for part in parts], max_subwords)

    def _split(self, tokenizer, longest, profile):
        usual_length, abbreviations = None, ()
        if profile is not None:
            longest = min(longest, max(profile.longest, 1))
            usual_length = 0 if profile.single_sentences else profile.usual_length
            abbreviations = profile.abbreviations
        for index, [(text, ids, _)] in enumerate(self._parts):
            is_several = profile is not None and profile.is_several(text, len(ids))
            if is_several or len(ids) > longest:
                self._parts[index] = split_text(
                    text, longest, tokenizer.encode_batch, usual_length, abbreviations
                )

    def spread(self, prefixes: Sequence[str] | None) -> list[str] | None:
        """Returns a prefix for each part: `""` except for a text's first part with subwords."""
        if prefixes is None:
            return None
        prefixes = checked_prefixes(prefixes, len(self._parts))
        spread = []
        for prefix, parts in zip(prefixes, self._parts, strict=True):
            for part in parts:
                spread.append(prefix if part.ids else "")
                prefix = "" if part.ids else prefix
        return spread

    def join(self, answers: Sequence[str]) -> list[str]:
        """Returns the answer to each text from the answers to all parts."""
        rest = iter(answers)
        return [join_answers(parts, [next(rest) for _ in parts]) for parts in self._parts]


def cut_sources(subwords: list[list[int]], max_subwords: int, advice: str = "") -> list[list[int]]:
    """Cuts the ids of sources to `max_subwords`, with a logged warning that ends in `advice`."""
    num_cut = sum(len(ids) > max_subwords for ids in subwords)
    if num_cut:
        message = "%d of %d sources have more than %d subwords and were cut to that length%s."
        _LOGGER.warning(message, num_cut, len(subwords), max_subwords, advice)
    return [ids[:max_subwords] for ids in subwords]


def whole_sources(
    texts, tokenizer, max_subwords: int, profile: SentenceProfile | None = None
) -> list[list[int]]:
    """Returns the ids of unsplit texts, cut if too long; warns of cuts and of several sentences."""
    texts = checked_texts("texts", texts)
    encoded = tokenizer.encode_batch(texts)
    if profile is not None:
        num_several = sum(map(profile.is_several, texts, map(len, encoded)))
        if num_several:
            message = (
                "%d of %d texts have more sentences than the texts of the training and are "
                "translated as a whole; split them into sentences first."
            )
            _LOGGER.warning(message, num_several, len(texts))
    return cut_sources(encoded, max_subwords, CUT_ADVICE)
