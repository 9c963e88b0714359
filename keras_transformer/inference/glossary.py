"""`Glossary`: terms of source texts with their translations, and placeholders that stay."""

import functools
import logging
import os
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_transformer.data.corpora import open_text
from keras_transformer.data.scripts import UNSPACED, letters_of_words
from keras_transformer.data.tokenizer import SPACE as PIECE_OF_SPACE
from keras_transformer.data.tokenizer import UNK_ID, Tokenizer
from keras_transformer.errors import UserError
from keras_transformer.inference.sentence_ends import SPACE

_LOGGER = logging.getLogger(__name__)
# Tags, fields in braces, printf's fields and URLs.
_PLACEHOLDERS = (
    r"</?[A-Za-z][^<>]*>",
    r"[$#%]?\{\{?[^{}]*\}?\}",
    r"%(?:\([^()]*\)|[0-9]+\$)?[-+#]?[0-9]*(?:\.[0-9]*)?(?:hh?|ll?|[jztL])?(?:[sdiufoxXeEgGc]\b|@)",
    f'https?://[^{SPACE}<>"]*[^{SPACE}<>"\'.,;:!?)\\]}}]',
)
# SentencePiece puts a space in front of a word, and so after an opening tag and before a closing.
_SPACE_OF_TAGS = (("(<[^/<>](?:[^<>]*[^/<>])?>) +", r"\1"), (" +(</[^<>]+>)", r"\1"))


class Glossary:
    """Terms of source texts and their translations, which answers must contain.

    - A term is found as a whole word, or words; in scripts without spaces between words, anywhere.
    - A term in small letters is found in any case: `dog` in "Dog". Another term is found as it is.
    - At each place of a text, the longest term counts, and each occurrence counts once.

    Args:
        terms: Translations by source term.
        keep_placeholders: Whether tags (`<b>`), fields (`{name}`, `%s`) and URLs stay as they are,
            in the same number.

    Raises:
        UserError: If a term or a translation is blank, or there is nothing to find.

    Example:

    >>> from keras_transformer.inference import Glossary
    >>> glossary = Glossary({"dog": "Hund", "hot dog": "Hotdog"}, keep_placeholders=True)
    >>> glossary.find("Dogs like a dog, <b>hot dogs</b> and a hot dog.")
    ['Hund', '<b>', '</b>', 'Hotdog']
    """

    def __init__(self, terms: Mapping[str, str], keep_placeholders: bool = False) -> None:
        for source, target in terms.items():
            if not (isinstance(source, str) and isinstance(target, str)):
                rule = "A term of a glossary and its translation must be text"
                raise UserError(f"{rule}. Received: {source!r} with {target!r}")
        # Letters and their accents are one character in some texts, and several in others.
        self.terms = {
            unicodedata.normalize(form, _joined(source)): _joined(target)
            for source, target in terms.items()
            for form in ("NFC", "NFD")
        }
        self.keep_placeholders = keep_placeholders
        for source, target in self.terms.items():
            if not source or not target:
                rule = "A term of a glossary and its translation must not be blank"
                raise UserError(f"{rule}. Received: {source!r} with {target!r}")
        if not (self.terms or keep_placeholders):
            raise UserError("A glossary needs a term. Received: none")

    @classmethod
    def load(cls, path: str | os.PathLike, keep_placeholders: bool = False) -> "Glossary":
        """Returns the glossary in a file.

        Args:
            path: UTF-8 text, .gz too; each line has a source term, a TAB and its translation.
            keep_placeholders: As for `Glossary`.

        Raises:
            UserError: If a line is something else, or a term has two translations.
        """
        terms: dict[str, str] = {}
        for number, line in enumerate(open_text(path), start=1):
            name, fields = f"{str(path)!r}, line {number}", list(map(_joined, line.split("\t")))
            if len(fields) != 2 or not all(fields):
                rule = "a line of a glossary is a term, a TAB and its translation"
                raise UserError(f"{name}: {rule}. Received: {line[:80]!r}")
            source, target = fields
            if terms.setdefault(source, target) != target:
                rule = f"{source!r} already has another translation, {terms[source]!r}"
                raise UserError(f"{name}: {rule}. Received: {target!r}")
        if not terms:
            raise UserError(f"The glossary {str(path)!r} is empty.")
        return cls(terms, keep_placeholders)

    def give_to(self, pipeline: Any) -> None:
        """Makes this the glossary of a translator.

        Args:
            pipeline: A `Translator`.

        Raises:
            UserError: If it is a pipeline of another task.
        """
        if not hasattr(pipeline, "glossary"):
            rule = "A glossary is for a model for translation"
            raise UserError(f"{rule}. Received: a model for {pipeline.task}")
        pipeline.glossary = self

    @property
    def placeholders(self) -> str:
        """The regular expression of a placeholder, `""` if they do not stay."""
        return "|".join(_PLACEHOLDERS) if self.keep_placeholders else ""

    @functools.cached_property
    def units(self) -> str:
        """The regular expression of the parts of a text that no term splits."""
        word = f"[{letters_of_words()}]+"
        # In subword-nmt's notation, "play@@ house" is one word.
        other = f"{word}(?:@@[{SPACE}]+{word})*|[{SPACE}]+|(?s:.)"
        return f"{self.placeholders}|{other}" if self.keep_placeholders else other

    def split(self, text: str) -> list[str]:
        """Returns the units of a text, with one space for white space.

        Args:
            text: The text.
        """
        units = re.findall(self.units, text, re.ASCII)
        return [" " if unit.isspace() else unit for unit in units]

    @functools.cached_property
    def max_units(self) -> int:
        """The largest number of units of a term, at least 1."""
        return max((len(self.split(term)) for term in self.terms), default=1)

    @property
    def space_of_tags(self) -> tuple[tuple[str, str], ...]:
        """Patterns of tags with a space inside of an element, each with its replacement."""
        return _SPACE_OF_TAGS if self.keep_placeholders else ()

    def find(self, text: str) -> list[str]:
        """Returns the translations of the terms in a text, and its placeholders, in their order.

        Args:
            text: The text.
        """
        units, found, start = self.split(text), [], 0
        while start < len(units):
            for end in range(min(start + self.max_units, len(units)), start, -1):
                term = "".join(units[start:end])
                target = self.terms.get(term) or self.terms.get(term.lower())
                if target is None and end == start + 1:
                    is_kept = self.keep_placeholders and re.fullmatch(self.placeholders, term)
                    target = term if is_kept else None
                if target is not None:
                    found.append(target)
                    break
            start = end
        return found

    def encode(self, text: str, tokenizer: Tokenizer) -> list[list[int]]:
        """Returns the ids of `find(text)`, without placeholders that the vocabulary cannot spell.

        Args:
            text: The text.
            tokenizer: The tokenizer of the target.

        Raises:
            UserError: If the vocabulary cannot spell a translation of the glossary.
        """
        known, terms = ids_of_terms(self, tokenizer), self.find(text)
        encoded = [known.get(term) or _encode([term], tokenizer)[0] for term in terms]
        for term, ids in zip(terms, encoded, strict=True):
            if UNK_ID in ids:
                _LOGGER.warning("The vocabulary cannot spell the placeholder %r.", term)
        return [ids for ids in encoded if UNK_ID not in ids]

    def tidy(self, answer: str, text: str) -> str:
        """Returns an answer without spaces inside of tags that its text does not have.

        Args:
            answer, text: The answer and its source text.
        """
        for pattern, replacement in self.space_of_tags:
            if not re.search(pattern, text):
                answer = re.sub(pattern, replacement, answer)
        return answer


def without_terms_of(
    prefix: Sequence[int], terms: Sequence[Sequence[int]], joins: np.ndarray
) -> list[Sequence[int]]:
    """Returns terms, without those that a prefix has already; they must not overlap in it.

    Args:
        prefix: Ids that the answer begins with.
        terms: Ids of each term.
        joins: That of `joins_of_pieces`: a term whose word goes on in the prefix does not count.
    """
    begins, ends = joins
    missing: list[Sequence[int]] = []
    rest: list[int | None] = list(prefix)
    for ids in terms:
        for start in range(len(rest) - len(ids) + 1):
            end = start + len(ids)
            goes_on = ends[ids[-1]] and any(begins[i] for i in rest[end : end + 1] if i is not None)
            if rest[start:end] == list(ids) and not goes_on:
                rest[start:end] = [None]
                break
        else:
            missing.append(ids)
    return missing


@functools.lru_cache(maxsize=8)
def joins_of_pieces(tokenizer: Tokenizer) -> np.ndarray:
    """Returns the `joins` of `RequiredTerms`: which pieces begin and end with a letter of a word.

    Args:
        tokenizer: The tokenizer of the target. Pieces of a `SubwordTokenizer` say themselves
            whether a word goes on.
    """
    pieces, letter = tokenizer.pieces(range(tokenizer.vocab_size)), f"[{letters_of_words()}]"
    has_spaces = any(piece.startswith(PIECE_OF_SPACE) for piece in pieces)
    is_letter = re.compile(letter).match
    begins = [has_spaces and is_letter(piece[:1]) is not None for piece in pieces]
    ends = [has_spaces and is_letter(piece[-1:]) is not None for piece in pieces]
    return np.array([begins, ends])


def _joined(text):
    return " ".join(text.split())


def _encode(texts: Sequence[str], tokenizer):
    """Returns the ids of texts inside of a longer one."""
    start = len(tokenizer.beginning)
    pairs = zip(texts, tokenizer.encode_batch(texts), tokenizer.spell(texts), strict=True)
    # The others begin with a space.
    return [spelled if UNSPACED.match(text) else ids[start:] for text, ids, spelled in pairs]


@functools.lru_cache(maxsize=8)
def ids_of_terms(glossary, tokenizer) -> dict[str, list[int]]:
    """Returns the ids of each translation in a glossary."""
    terms = list(dict.fromkeys(glossary.terms.values()))
    ids = dict(zip(terms, _encode(terms, tokenizer), strict=True))
    for term in terms:
        if UNK_ID in ids[term]:
            rule = "The target vocabulary cannot spell this term of the glossary"
            raise UserError(f"{rule}. Received: {term!r}")
    return ids
