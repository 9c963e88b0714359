"""One way to take text for a vocabulary: from files, from lines in memory, or from a corpus."""

import os
import pathlib
import random
from collections.abc import Iterable, Iterator

from keras_transformer.files import open_text


def text_lines(files_or_lines) -> Iterator[str]:
    """Yields lines of text from files, an iterable of lines, or a corpus of pairs.

    Args:
        files_or_lines: a path (`str` or `pathlib.Path`) of a plain or `.gz` text file; or an
            iterable whose items are `pathlib.Path` (files), `str` (lines of text, not paths), or
            tuples of `str` (pairs, such as a corpus yields: both sides are used).

    Yields:
        `str`, one per line.

    Raises:
        UserError: for a missing, damaged or not UTF-8 file.
        TypeError: for items of another type.

    Example:

    >>> from keras_transformer.data import PairsCorpus, text_lines
    >>> list(text_lines(PairsCorpus([("one", "eins"), ("two", "zwei")])))
    ['one', 'eins', 'two', 'zwei']
    """
    if isinstance(files_or_lines, (str, os.PathLike)):
        yield from open_text(files_or_lines)
        return
    for item in files_or_lines:
        if isinstance(item, str):
            yield item
        elif isinstance(item, pathlib.PurePath):
            yield from open_text(item)
        elif isinstance(item, tuple):
            yield from item
        else:
            raise TypeError(
                "Text is taken from str (a line), pathlib.Path (a file) or tuples of str (a pair). "
                f"Received: item={item!r} of type {type(item).__name__}"
            )


def sample_lines(lines: Iterable[str], max_lines: int, seed: int) -> list[str]:
    """Keeps `max_lines` lines, every line with the same chance (reservoir sampling).

    Args:
        lines: any number of lines; one pass, only the kept ones stay in memory.
        max_lines: how many to keep; all are kept, in order, if there are not more.
        seed: the sample is a function of the lines and of this number.

    Returns:
        `list[str]`.
    """
    kept: list[str] = []
    generator = random.Random(seed)
    for count, line in enumerate(lines):
        if count < max_lines:
            kept.append(line)
            continue
        slot = generator.randrange(count + 1)
        if slot < max_lines:
            kept[slot] = line
    return kept
