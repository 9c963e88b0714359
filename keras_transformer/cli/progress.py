"""Messages and progress bars on standard error."""

import contextlib
import shutil
import sys
import threading
import time
from typing import Self, TextIO

_WIDEST_BAR, _NARROWEST_BAR = 24, 4  # characters
_TEXT_WIDTH = 75  # columns for the text beside the bar
_TERMINAL_INTERVAL = 0.1  # seconds between redraws
_FILE_INTERVAL = 30.0  # seconds between lines when standard error is a file
_TICK = 1.0  # seconds between redraws by a bar's own thread

_lock = threading.RLock()  # bars also redraw themselves, in their own threads
_shown: list["Progress"] = []  # bars that are now on the last line of the terminal


def say(line: str) -> None:
    """Writes a line to standard error, above the progress bars."""
    with _lock:
        bars = list(_shown)
        for bar in bars:
            bar.clear()
        # A closed standard error must not stop the work.
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(line + "\n")
            sys.stderr.flush()
        for bar in bars:
            bar.draw()


def format_seconds(seconds: float) -> str:
    """Returns a duration as text, such as `7s`, `2:05` or `1:02:03`."""
    whole = int(round(seconds))
    hours, minutes, seconds = whole // 3600, whole // 60 % 60, whole % 60
    if hours:
        return f"{hours}:{minutes:02d}:{seconds:02d}"
    return f"{minutes}:{seconds:02d}" if minutes else f"{seconds}s"


class Progress:
    """A progress bar on standard error: redrawn in place, or a new line every 30 seconds in a file.

    If it has a total and a time limit, the bar shows the one that will be reached first.
    """

    def __init__(
        self,
        label: str,  # name of the work, such as "translating"
        total: int | None = None,  # number of units, if it is known
        unit: str = "",  # plural name of the units
        minutes: float | None = None,  # maximum minutes from the first report
        stream: TextIO | None = None,  # None for `sys.stderr`
    ):
        self.label, self.unit, self.note = label, unit, ""
        self.done, self.total, self.minutes = 0, total, minutes
        self._stream = sys.stderr if stream is None else stream
        self._is_terminal = self._stream.isatty()
        self._start = self._last_draw = time.monotonic()
        # The rate is measured from the first report, after loading, compiling and earlier runs.
        self._first: tuple[int, float] | None = None
        self._width = 0
        self._closed = threading.Event()

    def __enter__(self) -> Self:
        if self._is_terminal:
            threading.Thread(target=self._tick, daemon=True).start()
        return self

    def _tick(self) -> None:
        while not self._closed.wait(_TICK):
            if self._first:
                self.draw()

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        self._closed.set()
        with _lock:
            if self not in _shown:
                return
            _shown.remove(self)
            self.clear()
            if error_type is None:
                self._write(self.line(shutil.get_terminal_size().columns) + "\n")

    def update(self, done: int, total: int | None = None, note: str = "") -> None:
        """Sets the number of finished units, the total if given, and a note such as the loss."""
        self.done = max(self.done, done)
        self.total = self.total if total is None else total
        self.note = note
        now = time.monotonic()
        self._first = self._first or (done, now)
        interval = _TERMINAL_INTERVAL if self._is_terminal else _FILE_INTERVAL
        if now - self._last_draw >= interval:
            self.draw()

    def line(self, columns: int = 120) -> str:
        """Returns label, bar, count, rate, time left and note, for a terminal of this width."""
        now = time.monotonic()
        first_done, first_time = self._first or (self.done, now)
        elapsed = now - first_time
        rate = (self.done - first_done) / elapsed if elapsed > 0 else 0.0
        shares, ends = [], []  # of the total and the minutes, and the seconds left until each
        if self.total:
            shares.append(self.done / self.total)
            ends += [(self.total - self.done) / rate] if rate else []
        if self.minutes:
            shares.append(elapsed / (self.minutes * 60))
            ends += [self.minutes * 60 - elapsed] if self._first else []
        left = min(ends, default=0.0)
        bar = None
        if shares:
            width = max(_NARROWEST_BAR, min(_WIDEST_BAR, columns - _TEXT_WIDTH))
            bar = "[" + ("=" * round(min(max(shares), 1.0) * width)).ljust(width) + "]"
        count = f"{self.done:,}/{self.total:,}" if self.total else f"{self.done:,}"
        parts = [
            f"{count} {self.unit}".rstrip(),
            rate and f"{rate:,.{1 if rate < 100 else 0}f}/s",
            f"{format_seconds(left)} left" if left > 0 else format_seconds(now - self._start),
            self.note,
        ]
        return " ".join(filter(None, (self.label, bar, "  ".join(filter(None, parts)))))

    def draw(self) -> None:
        """Shows the line now."""
        with _lock:
            self._last_draw = time.monotonic()
            if not self._is_terminal:
                self._write(self.line() + "\n")
            elif not self._closed.is_set():  # the bar's thread may draw once more
                columns = shutil.get_terminal_size().columns
                line = self.line(columns)[: columns - 1]  # a line that wraps could not be redrawn
                self._write("\r" + line.ljust(self._width))
                self._width = len(line)
                if self not in _shown:
                    _shown.append(self)

    def clear(self) -> None:
        """Removes the line from the terminal, so that something else can be written."""
        self._write("\r" + " " * self._width + "\r")
        self._width = 0

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
            self._stream.flush()
