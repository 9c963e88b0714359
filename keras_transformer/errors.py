"""The exception for mistakes of the user: files, arguments, directories."""

import errno

# Errors of a full disk, a full quota, and a limit on the size of files (`ulimit -f`).
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class UserError(ValueError):
    """Something the user asked for cannot be done; the message is one clear line.

    Raised for a missing or empty file, parallel files of different lengths, invalid UTF-8, a
    damaged model directory and the like. Commands print the message without a traceback.

    Example:

    >>> from keras_transformer.errors import UserError
    >>> str(UserError("Something is wrong."))
    'Something is wrong.'
    """


def one_line(error: BaseException, limit: int = 300) -> str:
    """Returns the message of an exception without line breaks.

    Args:
        error: the exception.
        limit: maximum number of characters; what is longer ends in `...`.

    Returns:
        `str`; the name of the exception's class if it has no message.

    Example:

    >>> from keras_transformer.errors import one_line
    >>> one_line(ValueError("Too\\n   long"), limit=5)
    'Too l...'
    """
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= limit else text[:limit] + "..."
