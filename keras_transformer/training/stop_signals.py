"""Ctrl-C and SIGTERM while a model trains: the step is finished and saved before the end."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Self


class TrainingInterrupted(KeyboardInterrupt):
    """A signal ended the training; the message says which checkpoint is there.

    Args:
        signal_number: int, the signal.
        message: text for people.
    """

    def __init__(self, signal_number: int, message: str = "interrupted"):
        super().__init__(message)
        self.signal_number = signal_number


class StopSignals:
    """Handles SIGINT and SIGTERM inside a `with` block.

    A signal raises `TrainingInterrupted`. While `waits` is true the first one is only noted in
    `received`, and the next one raises. Signals that are ignored (as under `nohup`) or have a
    handler of the caller's stay as they are, and outside of the main thread all of them do.

    Args:
        report: called with a line for people when a signal is noted.

    Attributes:
        waits: whether there is work to save before the end.
        received: int, the signal that was noted, or None.
    """

    def __init__(self, report: Callable[[str], object]):
        self.waits = False
        self.received: int | None = None
        self._report = report
        self._before: dict = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            defaults = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
            for number, default in defaults.items():
                if signal.getsignal(number) == default:
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exception) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number, frame):
        if not self.waits or self.received is not None:
            raise TrainingInterrupted(number)
        self.received = number
        # The signal may have come in the middle of a write to the same stream.
        with contextlib.suppress(RuntimeError):
            self._report("Stopping after this step; a second signal stops at once.")

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        """Inside the block a signal raises, and what was noted before it raises too."""
        waited = self.waits
        self.release()
        try:
            yield
        finally:
            self.waits = waited

    def release(self) -> None:
        """Ends the waiting.

        Raises:
            TrainingInterrupted: if a signal was noted.
        """
        self.waits = False
        if self.received is not None:
            raise TrainingInterrupted(self.received)
