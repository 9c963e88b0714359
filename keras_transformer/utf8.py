"""Decoding lines of UTF-8 text."""

import codecs

from keras_transformer.errors import UserError

_BYTE_ORDER_MARK = "\ufeff"
# The mark of UTF-32 begins with that of UTF-16.
_OTHER_MARKS = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}


def decode_line(raw: bytes, name: str, number: int) -> str:
    """Decodes a line of UTF-8 text.

    Args:
        raw: the line with its end.
        name: where it is from, for the error.
        number: the line's number, from 1. A byte order mark is left out of the first line.

    Returns:
        The line without its end.

    Raises:
        UserError: if the line is not UTF-8; UTF-16 and UTF-32 are named.
    """
    if number == 1:
        other = next((found for mark, found in _OTHER_MARKS.items() if raw.startswith(mark)), None)
        # Without a mark, Latin letters show: every second byte is zero.
        if other or raw.count(0) * 3 > len(raw):
            other = other or "UTF-16"
            raise UserError(
                f"{name}: the text must be UTF-8; `iconv -f {other} -t UTF-8` converts it. "
                f"Received: {other}"
            )
    try:
        line = raw.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{name}, line {number}: the text is not valid UTF-8 "
            f"(byte 0x{error.object[error.start]:02x} at column {error.start + 1})."
        ) from error
    return line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line
