"""Splits long texts at sentence ends, then between words, and inside a word if necessary.

A text is tokenized a few times (in sentences, words and parts) and not once for each possible part,
so the time grows linearly with its length.
"""

import collections
import itertools
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, NamedTuple

import numpy as np
from annotated_types import Len

from keras_transformer.data.encoded_corpus import EncodedCorpus
from keras_transformer.data.scripts import UNSPACED
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.inference.sentence_ends import ENDS_JOINED, split_sentences, word_key
from keras_transformer.settings.base import (
    Allowed,
    CountOrZero,
    Items,
    Settings,
    settings_dataclass,
)

# White space, except inside a word in subword-nmt's notation: `play@@ house`.
_WORD_END = re.compile(r"(?<!\s)(?<!@@)\s+")
_JOINER = "\u200d"  # The zero-width joiner of emoji.
# A piece of a word may have slightly more subwords alone than inside the word.
_SPARE = 1.1
# Of a profile: the maximum number of texts that are searched for sentence ends, the quantile of
# usual lengths, and the share of single sentences, some of which look like two: titles, lists.
_MAX_TEXTS, _USUAL, _SINGLE = 50_000, 0.99, 0.95
# The minimum number of full stops of an abbreviation, and its maximum length.
_MIN_COUNT, _LONGEST_ABBREVIATION = 2, 6
# `<2de>`, `>>de<<` or `__de__`, and not `-`, `7` or `C++`.
_LIKE_A_TAG = re.compile(r"[\W_][\W\d_]*+[^\W\d_].*(?<=[\W_])")
_Words = Annotated[Items[Annotated[str, Len(1)]], Allowed("a list of words")]


@settings_dataclass
class SentenceProfile(Settings):
    """Lengths and sentence ends of the sources that a model was trained on.

    Args:
        usual_length: 99th percentile of the number of subwords of a source, without EOS.
        longest: Number of subwords of the longest source.
        single_sentences: Whether at least 95 % of the sources are one sentence.
        abbreviations: Words whose full stop does not end a sentence, in lower case, with 0 for each
            digit.
        tags: Symbols that each part of a text repeats from its beginning, as of a `MixedCorpus`.
            None, as in earlier models, for all symbols that look like tags, such as `>>fra<<`.

    Raises:
        ValueError: If a value is of another type, or negative.

    Example:

    >>> from keras_transformer.data import EncodedCorpus, PairsCorpus, SubwordTokenizer
    >>> from keras_transformer.inference import SentenceProfile
    >>> tokenizer = SubwordTokenizer(["a", "house."])
    >>> corpus = EncodedCorpus.from_corpus(PairsCorpus([("a house.", "a")]), tokenizer)
    >>> SentenceProfile.from_corpus(corpus, tokenizer)
    SentenceProfile(usual_length=2, longest=2, single_sentences=True, abbreviations=(), tags=())
    """

    usual_length: CountOrZero
    longest: CountOrZero
    single_sentences: bool
    abbreviations: _Words = ()
    tags: _Words | None = None

    @classmethod
    def from_corpus(cls, corpus: EncodedCorpus, tokenizer: Tokenizer) -> "SentenceProfile":
        """Returns the profile of a corpus.

        Args:
            corpus, tokenizer: The corpus, and the tokenizer of its source.
        """
        lengths = corpus.source_lengths - 1  # EOS does not count.
        offsets, ids = corpus.source_offsets, corpus.source_ids
        step = -(-len(corpus) // _MAX_TEXTS)
        numbers = range(0, len(corpus), step)
        sources = [ids[offsets[n] : offsets[n + 1]].tolist() for n in numbers]
        tags = (*tokenizer.languages, *(corpus.mixture.tags if corpus.mixture else ()))
        texts = [split_tags(text, tags)[1] for text in tokenizer.decode_batch(sources)]
        abbreviations = _find_abbreviations(texts)
        num_single = sum(len(split_sentences(text, abbreviations)) < 2 for text in texts)
        return cls(
            usual_length=int(np.quantile(lengths, _USUAL, method="inverted_cdf")),
            longest=int(lengths.max()),
            single_sentences=num_single >= _SINGLE * len(texts),
            abbreviations=abbreviations,
            tags=tags,
        )

    @staticmethod
    def tags_of(profile: "SentenceProfile | None", tokenizer: Tokenizer) -> Sequence[str]:
        """Returns the tags that a profile declares, or the symbols that look like tags.

        Args:
            profile, tokenizer: The profile or None, and the tokenizer of the sources.
        """
        if profile is not None and profile.tags is not None:
            return profile.tags
        return list(filter(_LIKE_A_TAG.fullmatch, tokenizer.symbols))

    @staticmethod
    def declared_tags_of(profile: "SentenceProfile | None", tokenizer: Tokenizer) -> Sequence[str]:
        """Returns the tags that a profile declares, or the languages that texts begin with.

        Args:
            profile, tokenizer: As in `tags_of`, whose other symbols may be text.
        """
        if profile is not None and profile.tags is not None:
            return profile.tags
        return tokenizer.languages

    def is_several(self, text: str, num_subwords: int) -> bool:
        """Returns whether a text has more sentences than was usual in the training text.

        Args:
            text, num_subwords: The text, and the number of its subwords.
        """
        if not self.single_sentences and num_subwords <= self.usual_length:
            return False
        return len(split_sentences(text, self.abbreviations)) > 1


def _find_abbreviations(texts):
    """Returns short words that, inside a text, have a full stop more often than not."""
    with_stop: collections.Counter[str] = collections.Counter()
    without: collections.Counter[str] = collections.Counter()
    for text in texts:
        words = text.split()
        for word in words[:-1]:
            key = word_key(word)
            if re.search(r"[^\W_]\.\W*$", word):
                with_stop[key] += 1
            elif key.strip("0"):  # A number may be an ordinal in one place and not in another.
                without[key] += 1
        # A full stop after the last word ends the sentence, so the word counts as one without.
        without.update(map(word_key, words[-1:]))
    abbreviations = (
        word
        for word, count in with_stop.items()
        if count >= max(_MIN_COUNT, without[word] + 1) and len(word) <= _LONGEST_ABBREVIATION
    )
    return tuple(sorted(abbreviations))


class TextPart(NamedTuple):
    """A part of a text, with the white space after it, and its subwords, which include the tags."""

    text: str
    ids: list[int]
    ends_word: bool = True  # If so, the next part begins with another word.
    tags: str = ""  # They are in front of the text.


def split_tags(text: str, known: Sequence[str]) -> tuple[str, str]:
    """Returns the tags that a text begins with, as they stand there, and the rest of the text."""
    rest = text
    while found := [tag for tag in known if rest.lstrip().startswith(tag)]:
        rest = rest.lstrip().removeprefix(max(found, key=len))
    tags = text.removesuffix(rest).strip()
    return (f"{tags} ", rest.lstrip()) if tags else ("", text)


def split_text(
    text: str,
    max_subwords: int,
    encode_batch: Callable[[list[str]], list[list[int]]],
    profile: SentenceProfile | None = None,
    longest_word: int = 0,
) -> list[TextPart]:
    """Splits a text into parts of up to `max_subwords`, if no word has more.

    Each part takes as many whole sentences as fit, or as were usual in the training. A sentence
    that is too long is split between words into parts of similar length. A word that is too long
    is a part of up to `longest_word` subwords, or is split into pieces.
    """
    groups_of, abbreviations = max_subwords, ()
    if profile is not None:
        usual_length = 0 if profile.single_sentences else profile.usual_length
        groups_of, abbreviations = min(usual_length, max_subwords), profile.abbreviations
    sentences = split_sentences(text, abbreviations)
    parts = _join_while_they_fit(sentences, max_subwords, encode_batch, groups_of)
    for index, part in reversed([*enumerate(parts)]):
        if len(part.ids) > max(max_subwords, longest_word):
            parts[index : index + 1] = _pieces(part, max_subwords, encode_batch)
    return parts


def join_parts(parts: Iterable[TextPart], answers: Iterable[str]) -> str:
    """Joins the answers to the parts of a text.

    A space stands between two of them, except where a word was cut or the script has no spaces.
    """
    joined: list[str] = []
    gap, last = "", ""
    for part, answer in zip(parts, answers, strict=False):  # The answers of other texts follow.
        if answer:
            joined += [gap if joined else "", answer]
            gap, last = "", answer
        if part.ends_word and not re.fullmatch(ENDS_JOINED, last):
            gap = " "
    return "".join(joined)


def _units(text, matches):
    """Cuts a text after each match of a pattern."""
    ends = [match.end() for match in matches]
    if not ends or ends[-1] < len(text):
        ends.append(len(text))
    return [text[start:stop] for start, stop in itertools.pairwise([0, *ends])]


def _join_while_they_fit(units, limit, encode_batch, groups_of, are_words=False):
    """Joins neighboring sentences or words into parts; splits a sentence that does not fit alone.

    Several units together have at most `groups_of` subwords, a sentence alone at most `limit`.
    """
    encoded = encode_batch(units)
    groups = _group(list(map(len, encoded)), groups_of, is_even=are_words)
    texts = ["".join(units[index] for index in group) for group in groups]
    parts = []
    for group, text, ids in zip(groups, texts, encode_batch(texts), strict=True):
        if len(ids) > limit and len(group) > 1:
            # Units may have more subwords together than alone.
            parts += [TextPart(units[index], encoded[index]) for index in group]
        elif len(ids) <= limit or are_words:
            parts.append(TextPart(text, ids))
        else:
            words = _units(text, _WORD_END.finditer(text))
            parts += _join_while_they_fit(words, limit, encode_batch, limit, are_words=True)
    return parts


def _group(sizes, limit, is_even):
    """Groups the indices of neighbors up to the limit; a larger size is a group of its own."""
    if is_even:
        # Groups of similar size: a last part of a single word would lack context.
        num_groups = max(math.ceil(sum(sizes) / limit), 1)
        limit = min(limit, math.ceil(sum(sizes) / num_groups) + max(sizes) - 1)
    groups: list[list[int]] = []
    total = 0
    for index, size in enumerate(sizes):
        if not groups or total + size > limit:
            groups.append([])
            total = 0
        groups[-1].append(index)
        total += size
    return groups


def _pieces(word, limit, encode_batch):
    """Splits a part of one word, or of text without spaces, whose words may end at any letter."""
    *pieces, last = _cut(word.text, len(word.ids), limit, encode_batch)
    ends = [UNSPACED.match(text[-1]) is not None for text, _ in pieces]
    cut = [TextPart(*piece, end) for piece, end in zip(pieces, ends, strict=True)]
    return [*cut, TextPart(*last)]


def _cut(text, num_subwords, limit, encode_batch) -> list[tuple[str, list[int]]]:
    """Returns pieces of a word, about equally long, each with its ids."""
    # Where a visible character begins: not at combining accents or joined emoji.
    starts = [
        index
        for index, letter in enumerate(text)
        if index == 0
        or unicodedata.category(letter)[0] != "M"
        and _JOINER not in text[index - 1 : index + 1]
    ]
    if len(starts) == 1:
        starts = list(range(len(text)))
    num_pieces = min(math.ceil(_SPARE * num_subwords / limit), len(starts))
    bounds = [starts[len(starts) * number // num_pieces] for number in range(num_pieces)]
    texts = [text[start:stop] for start, stop in itertools.pairwise([*bounds, len(text)])]
    pieces: list[tuple[str, list[int]]] = []
    for piece, ids in zip(texts, encode_batch(texts), strict=True):
        # A piece with too many subwords is cut again, into pieces of at most about half its length.
        fits = len(ids) <= limit or len(piece) == 1
        pieces += [(piece, ids)] if fits else _cut(piece, len(ids), limit, encode_batch)
    return pieces
