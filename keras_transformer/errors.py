"""Exceptions: mistakes of the user, and signals that end the work."""

import difflib
import errno
from collections.abc import Iterable

# Errors of a full disk, a full quota, and a limit on the size of files (`ulimit -f`).
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class UserError(ValueError):
    """A mistake of the user, such as a missing file; the message is one clear line.

    Commands print the message without a traceback.
    """


def one_line(error: BaseException) -> str:
    """Returns an exception's message or class name as one line, cut after 300 characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:300] + "..."


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Returns " (did you mean NAME?)" with the name that is most like a misspelt one, or ""."""
    close = difflib.get_close_matches(name, names, n=1)
    return f" (did you mean {close[0]}?)" if close else ""


class StoppedBySignal(KeyboardInterrupt):
    """A signal ended the work; the message may say what was saved."""

    def __init__(self, signal_number: int, message: str = "interrupted"):
        super().__init__(message)
        self.signal_number = signal_number
