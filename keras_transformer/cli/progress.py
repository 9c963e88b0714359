"""Standard error: news in single lines, and a progress bar with count, rate and time left."""

import contextlib
import shutil
import sys
import time
from types import TracebackType
from typing import Self, TextIO

_WIDEST_BAR, _NARROWEST_BAR = 24, 4  # characters
_TERMINAL_INTERVAL = 0.1  # seconds between redraws
_FILE_INTERVAL = 30.0  # seconds between lines when standard error is a file

_shown: list["Progress"] = []  # bars that now stand on the last line of the terminal


def say(line: str) -> None:
    """Writes a line to standard error, so that it never mixes with a command's output.

    Args:
        line: the text.
    """
    bars = list(_shown)
    for bar in bars:
        bar.clear()
    # Nobody may be reading; that must not stop the work.
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
    for bar in bars:
        bar.draw()


def format_seconds(seconds: float) -> str:
    """A duration as people write it: `7s`, `2:05`, `1:02:03`.

    Args:
        seconds: number of seconds.

    Returns:
        The text.

    Example:

    >>> format_seconds(125)
    '2:05'
    """
    whole = int(round(seconds))
    hours, minutes, seconds = whole // 3600, whole // 60 % 60, whole % 60
    if hours:
        return f"{hours}:{minutes:02d}:{seconds:02d}"
    return f"{minutes}:{seconds:02d}" if minutes else f"{seconds}s"


class Progress:
    """Shows how far a piece of work is, on standard error.

    On a terminal one line is redrawn in place. Otherwise (a log file, a pipe) a line is written
    every 30 seconds, so that work which is over sooner leaves nothing behind.

    Args:
        label: what is being done, e.g. `"translating"`.
        total: number of units, or `None` if it is not known.
        unit: plural name of the units.
        stream: where to write; `None` takes `sys.stderr`.

    Example:

    >>> with Progress("reading", total=3, unit="lines") as progress:
    ...     for _ in range(3):
    ...         progress.advance()
    """

    def __init__(
        self, label: str, total: int | None = None, unit: str = "", stream: TextIO | None = None
    ):
        self.label = label
        self.total = total
        self.unit = unit
        self.done = 0
        self.note = ""
        self._stream = sys.stderr if stream is None else stream
        self._is_terminal = self._stream.isatty()
        self._start = self._last_draw = time.monotonic()
        # The rate counts from the first report: what came before is loading, compiling, or the
        # steps of an earlier run.
        self._first: tuple[int, float] | None = None
        self._width = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self not in _shown:
            return
        _shown.remove(self)
        self.clear()
        if error is None:
            self._write(self.line(shutil.get_terminal_size().columns) + "\n")

    def advance(self, count: int = 1, note: str = "") -> None:
        """Counts units that are done.

        Args:
            count: number of units.
            note: a short text shown at the end of the line, e.g. the loss.
        """
        self.update(self.done + count, note=note)

    def update(self, done: int, total: int | None = None, note: str = "") -> None:
        """Sets the number of units that are done.

        Args:
            done: number of units done so far.
            total: number of units in all, if it was not known before.
            note: a short text shown at the end of the line.
        """
        self.done = done
        self.total = self.total if total is None else total
        self.note = note
        now = time.monotonic()
        self._first = self._first or (done, now)
        interval = _TERMINAL_INTERVAL if self._is_terminal else _FILE_INTERVAL
        if now - self._last_draw >= interval:
            self.draw()

    def line(self, columns: int = 120) -> str:
        """The line as it is shown.

        Args:
            columns: width to fit into, by a shorter bar.

        Returns:
            Label, bar, count, rate, time left and note.
        """
        count = f"{self.done:,}/{self.total:,}" if self.total else f"{self.done:,}"
        parts = [f"{count} {self.unit}".rstrip()]
        rate = self._rate()
        if rate:
            parts.append(f"{rate:,.1f}/s" if rate < 100 else f"{rate:,.0f}/s")
        if rate and self.total and self.done < self.total:
            parts.append(f"{format_seconds((self.total - self.done) / rate)} left")
        else:
            parts.append(format_seconds(time.monotonic() - self._start))
        if self.note:
            parts.append(self.note)
        text = "  ".join(parts)
        if not self.total:
            return f"{self.label} {text}"
        # Two spaces, two brackets, and a column that stays free.
        return f"{self.label} {self._bar(columns - len(self.label) - len(text) - 5)} {text}"

    def _bar(self, width: int) -> str:
        width = max(_NARROWEST_BAR, min(_WIDEST_BAR, width))
        filled = round(min(self.done / self.total, 1.0) * width)
        return "[" + "=" * filled + " " * (width - filled) + "]"

    def _rate(self) -> float:
        first_done, first_time = self._first or (0, self._start)
        elapsed = time.monotonic() - first_time
        return (self.done - first_done) / elapsed if elapsed > 0 else 0.0

    def draw(self) -> None:
        """Shows the line now."""
        self._last_draw = time.monotonic()
        if not self._is_terminal:
            self._write(self.line() + "\n")
            return
        columns = shutil.get_terminal_size().columns
        line = self.line(columns)[: columns - 1]  # a line that wraps could not be redrawn
        self._write("\r" + line.ljust(self._width))
        self._width = len(line)
        if self not in _shown:
            _shown.append(self)

    def clear(self) -> None:
        """Takes the line off the terminal, for something else to be written."""
        self._write("\r" + " " * self._width + "\r")
        self._width = 0

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
            self._stream.flush()
