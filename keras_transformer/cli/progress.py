"""Messages and progress bars on standard error."""

import contextlib
import shutil
import sys
import threading
from time import monotonic
from typing import Any, Self

from tqdm import tqdm

_TERMINAL_INTERVAL = 0.1  # seconds between redraws
_FILE_INTERVAL = 30.0  # seconds between lines when standard error is a file
_TICK = 1.0  # seconds between redraws without news
_BAR = "{desc} |{bar}| {count} [{elapsed}<{remaining}, {speed}{postfix}]"
_NO_BAR = "{desc} {count} [{elapsed}, {speed}{postfix}]"


def say(line: str) -> None:
    """Writes a line to standard error, above the progress bars."""
    # A closed standard error must not stop the work.
    with contextlib.suppress(OSError, ValueError):
        Progress.write(line, file=sys.stderr)
        sys.stderr.flush()


class Progress(tqdm):
    """A tqdm bar on standard error; in a file, a new line every 30 seconds.

    The time begins at the first report, with `used` minutes. Of a total and a limit in `minutes`,
    the bar shows the one that will be reached first. `stream` replaces standard error.
    """

    monitor_interval = 0  # no thread of tqdm: `_tick` is one

    def __init__(self, label, total=None, unit="", minutes=None, used=0.0, stream=None):
        file = sys.stderr if stream is None else stream
        self._limit, self._used, self._is_terminal = 60 * (minutes or 0), 60 * used, file.isatty()
        self._is_running, self._closed = False, threading.Event()
        interval = _TERMINAL_INTERVAL if self._is_terminal else _FILE_INTERVAL
        times = {"mininterval": interval, "miniters": 0, "smoothing": 0}
        times["delay"] = _FILE_INTERVAL  # on a terminal, until the first report
        # `format_dict` has the width; some terminals say that they have no rows.
        super().__init__(desc=label, total=total, unit=unit, file=file, ncols=1, nrows=20, **times)
        self._time = monotonic  # tqdm's own follows a change of the system's time.
        self.last_print_t = self._time()

    def __enter__(self) -> Self:
        if self._is_terminal:
            threading.Thread(target=self._tick, daemon=True).start()
        return self

    def _tick(self) -> None:
        while not self._closed.wait(_TICK):
            if self._is_running:
                self.refresh()

    def __exit__(self, error_type, *_) -> None:
        self.leave = error_type is None
        self.close()

    def update(self, done: int, total: int | None = None, note: str = "") -> None:
        """Sets the number of finished units, the total if given, and a note such as the loss."""
        is_first, self._is_running = not self._is_running, True
        if is_first:  # loading, compiling and earlier runs do not count as time
            self.last_print_t = self._time()
            self.start_t = self.last_print_t - self._used
            self.n = self.initial = done
            self.delay = 0 if self._is_terminal else _FILE_INTERVAL
        if total is not None:
            self.total = total
        self.set_postfix_str(note, refresh=is_first)
        super().update(max(0, done - self.n))

    @property
    def format_dict(self) -> dict[str, Any]:
        values = super().format_dict
        n, total, elapsed = values["n"], values["total"], values["elapsed"]
        speed = (n - self.initial) / (elapsed - self._used) if elapsed > self._used else 0.0
        limit, values["rate"] = self._limit, speed or None
        if limit and (not total or elapsed / limit > n / total):
            values |= {"n": min(elapsed, limit), "total": limit, "rate": 1.0}
            total = None  # The bar, the count and the time left are of the same limit.
        count = f"{n:,}/{total:,}" if total else f"{n:,}"
        values |= {
            "bar_format": _BAR if total or limit else _NO_BAR,
            "count": f"{count} {self.unit}".rstrip(),
            # A line that wraps could not be redrawn.
            "ncols": max(1, shutil.get_terminal_size().columns - 1) if self._is_terminal else 100,
            "speed": f"{speed:,.{1 if speed < 100 else 0}f}/s",
        }
        return values

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        with contextlib.suppress(OSError, ValueError):
            if self._is_terminal:
                super().display(msg, pos)
            # `write` draws all bars again.
            elif self._time() - self.last_print_t >= _FILE_INTERVAL:
                self.last_print_t = self._time()
                self.fp.write(f"{self}\n")
                self.fp.flush()

    def clear(self, nolock: bool = False) -> None:
        if self._is_terminal:
            with contextlib.suppress(OSError, ValueError):
                super().clear(nolock)

    def close(self) -> None:
        self._closed.set()
        self.disable |= not (self._is_terminal and self._is_running)  # then without a last line
        with contextlib.suppress(OSError, ValueError):
            super().close()


Progress.set_lock(threading.RLock())  # tqdm's default is also for other processes
