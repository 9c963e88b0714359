"""Exceptions: mistakes of the user, and signals that end the work after its next step."""

import contextlib
import difflib
import errno
import functools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Self

# Errors of a full disk, a full quota, and a limit on the size of files (`ulimit -f`).
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_SECONDS_TO_RETRY = 0.05


class UserError(ValueError):
    """A mistake of the user, such as a missing file; the message is one clear line.

    Commands print the message without a traceback.
    """


def one_line(error: BaseException) -> str:
    """Returns an exception's message or class name as one line, cut after 300 characters."""
    return shortened(str(error), 300) or type(error).__name__


def shortened(text: str, length: int) -> str:
    """Returns the beginning of a text on one line, of at most `length` characters and "..."."""
    text = " ".join(text.split())
    return text if len(text) <= length else text[:length] + "..."


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Returns " (did you mean NAME?)" with the name that is most like a misspelled one, or ""."""
    close = difflib.get_close_matches(name, names, n=1)
    return f" (did you mean {close[0]}?)" if close else ""


class StoppedBySignal(KeyboardInterrupt):
    """A signal ended the work; the message may say what was saved."""

    def __init__(self, signal_number: int, message: str = "interrupted"):
        super().__init__(message)
        self.signal_number = signal_number


class StopSignals:
    """Handles SIGINT, SIGTERM and SIGHUP inside a `with` block; the innermost block handles them.

    A signal raises `StoppedBySignal`. While `waits` is true, the first signal is only noted in
    `received`, and the next one raises. Signals that are ignored (as under `nohup`) or have a
    custom handler stay so, as do all of them outside the main thread. `report` gets a message.
    """

    def __init__(self, report: Callable[[str], object]):
        self.waits = False  # whether there is work to save before the end
        self.received: int | None = None  # the signal that was noted
        self._report = report
        self._before: dict = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # Windows has no SIGHUP
                number = getattr(signal, name, None)
                if number is None:
                    continue
                handler = signal.getsignal(number)
                is_default = handler in (signal.SIG_DFL, signal.default_int_handler)
                if is_default or isinstance(getattr(handler, "__self__", None), StopSignals):
                    self._before[number] = signal.signal(number, self._handle)
        self._hook_before, sys.unraisablehook = sys.unraisablehook, self._retry
        return self

    def __exit__(self, *exception) -> None:
        sys.unraisablehook = self._hook_before
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number, frame):
        if not self.waits or self.received is not None:
            raise StoppedBySignal(number)
        self.received = number
        # The signal may have come in the middle of a write to the same stream.
        with contextlib.suppress(RuntimeError):
            self._report("Stopping after this step; a second signal stops at once.")

    def _retry(self, unraisable) -> None:
        """Sends a signal again if Python ignored its exception, as in `__del__` and in gc."""
        if unraisable.exc_type is StoppedBySignal:
            # Only later, from another thread: Python would ignore the exception here as well.
            kill = functools.partial(os.kill, os.getpid())  # on Windows, it would end the process
            send = kill if os.name == "posix" else signal.raise_signal
            number = unraisable.exc_value.signal_number
            threading.Timer(_SECONDS_TO_RETRY, send, [number]).start()
        else:
            self._hook_before(unraisable)

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        """Lets a signal raise inside the block; a signal noted before raises at its start."""
        waited = self.waits
        self.release()
        try:
            yield
        finally:
            self.waits = waited

    def release(self) -> None:
        """Ends the waiting; raises `StoppedBySignal` if a signal was noted."""
        self.waits = False
        if self.received is not None:
            raise StoppedBySignal(self.received)
