"""Messages and progress bars on standard error."""

import contextlib
import functools
import io
import sys
import threading
from time import monotonic
from typing import Any, Self

_FILE_INTERVAL = 30.0  # seconds between lines when standard error is a file
_NO_BAR = "{desc} {n:,}{unit} [{elapsed}, {rate_noinv_fmt}{postfix}]"
_BAR = "{desc} |{bar}| {n:,}/{total:,}{unit} [{elapsed}<{remaining}, {rate_noinv_fmt}{postfix}]"


@functools.cache
def _tqdm():
    """Returns the class of bars, which is slow to import."""
    from tqdm import tqdm

    tqdm.set_lock(threading.RLock())  # Its default is also for other processes.
    return tqdm


def say(line: str) -> None:
    """Writes a line to standard error, above the progress bars."""
    # A closed standard error must not stop the work.
    with contextlib.suppress(OSError, ValueError):
        _tqdm().write(line, file=sys.stderr)
        sys.stderr.flush()


class ProgressBar:
    """A bar of tqdm on standard error; in a file, a new line every 30 seconds.

    The time begins at the first report. With a limit in `minutes`, of which `used` are over, the
    total is the number of units that the limit leaves time for, if that is less.
    """

    def __init__(self, label, total=None, unit="", minutes=None, used=0.0):
        self._options = {"desc": label, "total": total, "unit": f" {unit}" if unit else ""}
        self._seconds_left = None if minutes is None else 60 * (minutes - used)
        self._bar: Any = None
        self._last_line = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error_type, *_) -> None:
        with contextlib.suppress(OSError, ValueError):
            if self._bar is not None:
                self._bar.leave = error_type is None
                self._bar.close()

    def update(self, done: int, total: int | None = None, note: str = "") -> None:
        """Sets the number of finished units, the total if given, and a note such as the loss."""
        with contextlib.suppress(OSError, ValueError):
            is_first = self._bar is None
            bar = self._start(done) if is_first else self._bar
            self._options["total"] = total or self._options["total"]
            bar.n = max(bar.n, done)
            reachable = self._reachable(bar, self._options["total"])
            # A total may be an estimate that is too low.
            bar.total = reachable if reachable and reachable >= bar.n else None
            bar.bar_format = _BAR if bar.total else _NO_BAR
            bar.set_postfix_str(note, refresh=is_first)
            bar.update(0)  # draws, unless it has just done so
            if not sys.stderr.isatty() and monotonic() - self._last_line >= _FILE_INTERVAL:
                self._last_line = monotonic()
                say(str(bar))

    def _start(self, done):
        # Loading, compiling and earlier runs do not count as time.
        self._last_line = monotonic()
        is_terminal = sys.stderr.isatty()
        where = {"file": sys.stderr if is_terminal else io.StringIO(), "initial": done}
        how = {"miniters": 0, "smoothing": 0, "dynamic_ncols": True, "bar_format": _NO_BAR}
        self._bar = _tqdm()(mininterval=0.1 if is_terminal else float("inf"),
                         **self._options, **where, **how)  # fmt: skip
        return self._bar

    def _reachable(self, bar, total):
        """Returns the total, or the number of units in the limit of time at the speed so far."""
        elapsed, done = bar.format_dict["elapsed"], bar.n - bar.initial
        if self._seconds_left is None or not elapsed or not done:
            return total
        reachable = bar.initial + round(done * max(self._seconds_left, elapsed) / elapsed)
        return min(total or reachable, reachable)
