"""`Glossary`: terms of source texts with their translations, and placeholders that stay."""

import functools
import logging
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from keras_transformer.data.corpora import open_text
from keras_transformer.data.scripts import UNSPACED, letters_of_words
from keras_transformer.data.tokenizer import UNK_ID, Tokenizer
from keras_transformer.errors import UserError
from keras_transformer.inference.sentence_ends import SPACE

_LOGGER = logging.getLogger(__name__)
# Characters that Unicode keeps out of texts: around each word, and around each match.
WORD, MATCH = "\ufdd0", "\ufdd1"
# Placeholders in a text whose words are marked: tags, fields in braces, printf's fields and URLs.
_PLACEHOLDERS = (
    f"</?{WORD}[^<>]*>",
    r"[$#%]?\{\{?[^{}]*\}?\}",
    f"%(?:\\({WORD}[^()]*\\)|{WORD}[0-9]+{WORD}\\$)?\\.?{WORD}[0-9]*[sdifuxXeEgGc]{WORD}",
    f'{WORD}https?{WORD}://[^{SPACE}<>"]*[{WORD}/]',
)
# SentencePiece puts a space in front of a word, and so behind an opening tag and before a closing.
_SPACE_OF_TAGS = (("(<[^/<>][^<>]*>) +", r"\1"), (" +(</[^<>]+>)", r"\1"))


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
        self.terms = {_joined(source): _joined(target) for source, target in terms.items()}
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
            keep_placeholders: As above.

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

    @functools.cached_property
    def pattern(self) -> str:
        """The regular expression of placeholders and terms in a text whose words are marked."""
        # The longest first; a term with capital letters before the same one without.
        terms = sorted(self.terms, key=lambda term: (-len(term), term == term.lower()))
        patterns = list(_PLACEHOLDERS) if self.keep_placeholders else []
        for term in terms:
            words = f"[{SPACE}]+".join(map(re.escape, _mark_words(term).split(" ")))
            patterns.append(f"(?i:{words})" if term == term.lower() else words)
        return "|".join(patterns)

    @property
    def space_of_tags(self) -> tuple[tuple[str, str], ...]:
        """Patterns of tags with a space inside of an element, each with its replacement."""
        return _SPACE_OF_TAGS if self.keep_placeholders else ()

    @functools.cached_property
    def _compiled(self):
        return re.compile(self.pattern)

    def find(self, text: str) -> list[str]:
        """Returns the translations of the terms in a text, and its placeholders, in their order.

        Args:
            text: The text.
        """
        found = []
        for match in self._compiled.finditer(_mark_words(text)):
            term = match[0].replace(WORD, "")
            known = _joined(term)
            found.append(self.terms.get(known) or self.terms.get(known.lower()) or term)
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


def without_terms_of(prefix: Sequence[int], terms: Sequence[Sequence[int]]) -> list[Sequence[int]]:
    """Returns terms, without those that a prefix has already; they must not overlap in it.

    Args:
        prefix: Ids that the answer begins with.
        terms: Ids of each term.
    """
    missing: list[Sequence[int]] = []
    rest: list[int | None] = list(prefix)
    for ids in terms:
        for start in range(len(rest) - len(ids) + 1):
            if rest[start : start + len(ids)] == list(ids):
                rest[start : start + len(ids)] = [None]
                break
        else:
            missing.append(ids)
    return missing


def _joined(text):
    return " ".join(text.split())


@functools.cache
def words_pattern() -> str:
    """Returns the regular expression of a word, or of the part that an apostrophe cuts."""
    return f"([{letters_of_words()}]+)"


def _mark_words(text):
    return re.sub(words_pattern(), f"{WORD}\\1{WORD}", text)


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
