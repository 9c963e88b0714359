"""Rules of the world's scripts: which have no spaces between words, and how text is normalized."""

import functools
import itertools
import re
import unicodedata
from collections.abc import Iterator, Set

# Letters of Thai, of Chinese and Japanese with their punctuation: no space between two sentences.
JOINED_LETTERS = (
    "\u0e00-\u0e7f\u3001-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff01-\uff9f"
    "\U00020000-\U0003134f"
)
# A letter of a script without spaces between words: also of Lao, Tibetan, Burmese and Khmer, which
# have spaces between sentences.
UNSPACED = re.compile(f"[{JOINED_LETTERS}\u0e80-\u0fff\u1000-\u109f\u1780-\u17ff]")
# Letters in the form of their place in a word are other codes of the same letters.
_FORMS = ("<initial>", "<medial>", "<final>", "<isolated>")
_LIGATURES = {*range(0xFB00, 0xFB07), *range(0xFB13, 0xFB18)}  # Latin and Armenian
_SPACES = set("\t\n\v\f\r\x85\u2028\u2029")
_BYTE_ORDER_MARK = "\ufeff"
_LAST_OF_WORDS = 0x1FBFA  # Later letters are Chinese or Japanese.
_LAST = 0x2FA1D  # Later characters have no decomposition.


@functools.cache
def letters_of_words() -> str:
    """Returns letters, accents and digits, as the inside of a class of a regular expression.

    Those of scripts without spaces between words are not among them.
    """
    characters = map(chr, range(_LAST_OF_WORDS))
    letters = (c for c in characters if unicodedata.category(c)[0] in "LMN" or c == "_")
    return character_ranges({ord(c) for c in letters if not UNSPACED.match(c)})


def character_ranges(codes: Set[int]) -> str:
    """Returns the characters of codes, as the inside of a class of a regular expression."""
    starts = sorted(code for code in codes if code - 1 not in codes)
    ends = sorted(code for code in codes if code + 1 not in codes)
    return "".join(f"{chr(a)}-{chr(b)}" for a, b in zip(starts, ends, strict=True))


@functools.cache
def nfc_rules() -> str:
    """Returns the replacements of `train_sentencepiece(normalization="nfc")`, as a TSV file.

    - A letter and its accents become one character, as in Unicode's form NFC.
    - Each kind of space becomes `" "`; control characters are left out.
    - Latin ligatures such as "ﬁ" and the presentation forms of Arabic become their letters.

    All else stays: joiners, "…", "™", "x²", full-width punctuation. A line has the code points of a
    text and those of its replacement; SentencePiece replaces the longest text first.
    """
    rules = dict(sorted(_replacements()))
    lines = (f"{_codes(text)}\t{_codes(normal)}\n" for text, normal in rules.items())
    return "".join(lines)


def _replacements() -> Iterator[tuple[str, str]]:
    for code in range(1, _LAST + 1):
        character = chr(code)
        category = unicodedata.category(character)
        if category == "Zs" and character != " " or character in _SPACES:
            yield character, " "
        elif category == "Cc" or character == _BYTE_ORDER_MARK:
            yield character, ""
        elif code in _LIGATURES or unicodedata.decomposition(character).startswith(_FORMS):
            yield character, unicodedata.normalize("NFKC", character)
        elif category not in ("Cn", "Co", "Cs"):
            normal, parts = (unicodedata.normalize(form, character) for form in ("NFC", "NFD"))
            texts = {character}
            for accents in map("".join, itertools.permutations(parts[1:])):
                text = parts[:1] + accents
                if unicodedata.normalize("NFC", text) == normal:  # It is the same in this order.
                    # A text may have composed the first parts already.
                    starts = (unicodedata.normalize("NFC", text[:end]) for end in range(len(text)))
                    texts |= {start + text[end:] for end, start in enumerate(starts)}
            yield from ((text, normal) for text in texts - {normal})


def _codes(text):
    return " ".join(f"{ord(character):X}" for character in text)
