"""Where sentences end, in any script: one rule, for Python and for a graph of TensorFlow.

The rule is a list of replacements that both regular expression engines understand: marks are put
after what may end a sentence, and taken away where it does not.
"""

import functools
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from keras_transformer.data.scripts import JOINED_LETTERS, character_ranges

# Ends before white space: Unicode's property Sentence_Terminal, "…", and the end of a Tibetan text.
_ENDS = (
    "!.?…‼‽⁇-⁉．։\u061d-\u061f۔\u0700-\u0702߹।॥\u104a\u104b\u1362\u1367\u1368\u166e\u1735\u1736\u17d4"
    "\u17d5\u1803\u1809\u1944\u1945\u1c3b\u1c3c\u1c7e\u1c7f\ua4ff\ua60e\ua60f\ua6f3\ua6f7\ua876\ua877"
    "\ua8ce\ua8cf\ua92f\ua9c8\ua9c9\uaa5d-\uaa5f\uaaf0\uaaf1\uabeb\u0f0e"
)
_FULL_WIDTH_ENDS = "。！？｡︒"  # in any place
# Quotation marks and brackets that may follow an end.
_CLOSING = "”’)]}」』）】》〉］｝〗〙"
# These open a quotation in some languages and close it in others.
_EITHER = "\"'“‘«»‹›"
MARKS = ".,;:!?-–" + _CLOSING + _EITHER + "([{„"
# White space of `str.strip`, as the inside of a class.
SPACE = "\t-\r\x1c- \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
# A text that may have several sentences.
MAY_BE_SEVERAL = (
    f"(?s:.*)(?:[{_ENDS}][{re.escape(_CLOSING + _EITHER)}]*[{SPACE}]|[{_FULL_WIDTH_ENDS}]|"
    f"\n[{SPACE}]*\n)(?s:.*)"
)
# An answer after which no space is needed.
ENDS_JOINED = f"(?s:.*)[{JOINED_LETTERS}][{re.escape(_CLOSING + _EITHER)}]*"
# Characters that Unicode keeps out of texts: after a possible end, and after a certain one.
_MAYBE, _END = "\ufdd0", "\ufdd1"
_LAST_CASED = 0x1E943  # the last code of a letter with upper and lower case


class _Rule(NamedTuple):
    """Patterns, each with its replacement."""

    marks: list[tuple[str, str]]
    exceptions: list[tuple[str, str]]  # where no sentence ends
    small_letter: tuple[str, str]  # no end before it, if the text begins otherwise
    begins_small: str
    cut: tuple[str, str]  # after the white space that follows an end


def split_sentences(text: str, abbreviations: Sequence[str] = ()) -> list[str]:
    """Splits a text into sentences, each with the white space after it.

    A sentence ends at `.`, `!`, `?`, `…` and the full stops of other scripts before white space, at
    full-width ends such as `。`, and at a blank line. A full stop after a single capital letter
    (except "I") or one of the `abbreviations` (`word_key`s) does not end a sentence. Unless the
    text begins with a small letter, no sentence ends before a small letter.

    Example:

    >>> split_sentences("Mr. J. Poe ran. Did he? (Yes!) It was 3 p.m. or so.", ["mr"])
    ['Mr. J. Poe ran. ', 'Did he? ', '(Yes!) ', 'It was 3 p.m. or so.']
    """
    rule, marked = _rule(tuple(abbreviations)), text
    for pattern, replacement in rule.marks:
        marked = re.sub(pattern, replacement, marked)
    if marked == text:
        return [text]
    for pattern, replacement in rule.exceptions:
        marked = re.sub(pattern, replacement, marked)
    if not re.match(rule.begins_small, text):
        pattern, replacement = rule.small_letter
        marked = re.sub(pattern, replacement, marked)
    pattern, replacement = rule.cut
    return re.sub(pattern, replacement, marked).removesuffix(_END).split(_END)


def split_sentences_in_graph(texts: Any, abbreviations: Sequence[str] = ()) -> Any:
    """Returns `split_sentences` of strings `[batch]`, a ragged tensor `[batch, sentences]`."""
    import tensorflow as tf

    rule, marked, replace = _rule(tuple(abbreviations)), texts, tf.strings.regex_replace
    for pattern, replacement in rule.marks + rule.exceptions:
        marked = replace(marked, pattern.removeprefix(_AT_FIRST_END), replacement)
    begins_small = tf.strings.regex_full_match(texts, rule.begins_small + "(?s:.*)")
    marked = tf.where(begins_small, marked, replace(marked, *rule.small_letter))
    return tf.strings.split(replace(replace(marked, *rule.cut), f"{_END}$", ""), _END)


# Where Python begins to match a run of ends; otherwise a line of dots takes forever. TensorFlow's
# engine has neither this problem nor this syntax.
_AT_FIRST_END = f"(?<![{_ENDS}])"


@functools.cache
def _rule(abbreviations):
    closing, either, marks = map(re.escape, (_CLOSING, _EITHER, MARKS))
    upper, lower = (_cased(method) for method in (str.isupper, str.islower))
    begin, stops = f"(?:^|[{SPACE}])", ".!?"
    exceptions = [
        (f"({begin}[{upper}]\\.){_MAYBE}", r"\1"),
        (f"{_MAYBE}([{SPACE}]+[»›][{SPACE}]*)$", r"\1"),  # the last quotation mark of French
    ]
    if abbreviations:
        words = "|".join(re.escape(word).replace("0", "[0-9]") for word in abbreviations)
        behind = re.escape("".join(mark for mark in MARKS if mark not in stops))
        pattern = f"(?i)({begin}[{marks}]*(?:{words})[{behind}]*\\.){_MAYBE}"
        exceptions.append((pattern, r"\1"))
    return _Rule(
        marks=[
            # French has a space before its closing quotation mark.
            (
                f"{_AT_FIRST_END}([{_ENDS}]+(?:[{SPACE}][»›]|[{closing}{either}])*)([{SPACE}])",
                f"\\1{_MAYBE}\\2",
            ),
            (f"([{_FULL_WIDTH_ENDS}]+[{closing}]*)", f"\\1{_END}"),
            (f"(\n[{SPACE}]*\n)", f"{_END}\\1"),
        ],
        exceptions=exceptions,
        small_letter=(f"{_MAYBE}([{SPACE}{marks}*_#/&•·]*[{lower}])", r"\1"),
        begins_small=f"[{SPACE}]*[{lower}]",
        cut=(
            f"[{_MAYBE}{_END}]+([{SPACE}]*)(?:[{_MAYBE}{_END}]+([{SPACE}]*))?",
            f"\\1\\2{_END}",
        ),
    )


def _cased(method):
    """Returns the letters that `method` is true for, but "I", as the inside of a class."""
    codes = {code for code in range(_LAST_CASED + 1) if method(chr(code))} - {ord("I")}
    return character_ranges(codes)


def word_key(word: str) -> str:
    """Returns a word in lower case, without punctuation around it and with 0 for each digit."""
    return re.sub(r"\d", "0", word.strip(MARKS).lower())
