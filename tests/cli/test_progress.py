"""The progress bar: count, rate and time left on a terminal, and silence where nobody watches."""

import io
import itertools
import os
import re
import shutil
import threading

import pytest
import tqdm.std

from keras_transformer.cli import progress as progress_module
from keras_transformer.cli.progress import Progress, say


class Terminal(io.StringIO):
    columns = 80

    def isatty(self):
        return True

    @property
    def line(self):
        """The line that is shown last."""
        return self.getvalue().split("\r")[-1].rstrip()


@pytest.fixture
def clock(monkeypatch):
    """A clock that moves when it is told to."""
    now = [100.0]
    monkeypatch.setattr(progress_module, "monotonic", lambda: now[0])
    jumps = itertools.cycle([1e9, -1e9])  # The time of the system may be set.
    monkeypatch.setattr(tqdm.std, "time", lambda: next(jumps))
    return now


@pytest.fixture
def terminal(monkeypatch):
    stream = Terminal()
    # pytest calls it too, with an argument.
    monkeypatch.setattr(
        shutil, "get_terminal_size", lambda *args, **_: os.terminal_size((stream.columns, 24))
    )
    return stream


def share(line):
    """The filled share of a bar."""
    bar = re.search(r"\|(.*)\|", line)[1]
    return len(bar.rstrip()) / len(bar)


def test_the_line_has_count_rate_time_left_and_note(clock, terminal):
    progress = Progress("translating", total=100, unit="lines", stream=terminal)
    progress.update(0)
    clock[0] += 10
    progress.update(20, note="loss 2.000")
    end = " 20/100 lines [00:10<00:40, 2.0/s, loss 2.000]"
    assert terminal.line.startswith("translating |") and terminal.line.endswith(end)
    assert len(terminal.line) == 79
    assert share(terminal.line) == pytest.approx(0.2, abs=0.05)


def test_the_bar_never_steps_back(clock, terminal):
    progress = Progress("training", total=100, stream=terminal)
    shares = []
    for done, note in ((10, ""), (30, "preparing"), (20, "loss 1.268  12,345 tokens/s"), (31, "")):
        clock[0] += 1
        progress.update(done, note=note)
        shares.append(share(terminal.line))
    assert progress.n == 31
    assert shares == pytest.approx([0.1, 0.3, 0.3, 0.31], abs=0.1)


def test_a_terminal_moves_without_news(monkeypatch):
    monkeypatch.setattr(progress_module, "_TICK", 0.01)
    stream, drawn = Terminal(), threading.Event()
    write = stream.write
    stream.write = lambda text: (write(text), "preparing" in text and drawn.set())
    with Progress("training", total=5, stream=stream) as progress:
        progress.update(0, note="preparing the first step")
        assert drawn.wait(60)


def test_steps_of_an_earlier_run_do_not_count_as_speed(clock, terminal):
    progress = Progress("training", total=1000, stream=terminal)
    progress.update(901)
    clock[0] += 10
    progress.update(911)
    assert "01:29, 1.0/s" in terminal.line


@pytest.mark.parametrize("columns", range(11))
def test_a_line_is_never_wider_than_the_terminal(clock, terminal, columns):
    terminal.columns = columns
    with Progress("training", total=100, stream=terminal) as progress:
        for _ in range(3):
            progress.update(progress.n + 1)  # the clock stands still at first
            clock[0] += 1
    lines = re.split(r"[\r\n]", terminal.getvalue())
    assert max(map(len, lines)) == max(1, columns - 1)


def test_a_file_gets_a_line_every_half_minute_only(clock, monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    with Progress("reading", total=100) as progress:
        progress.update(0)
        for _ in range(100):
            clock[0] += 1
            progress.update(progress.n + 1)
            [say("news") for _ in range(3 * (progress.n == 50))]
        clock[0] += 31  # without a step, as in a validation
        [say("news") for _ in range(3)]
    lines = stream.getvalue().splitlines()
    found = [re.search(r"\d+/100|news", line)[0] for line in lines]
    assert found == ["30/100", *3 * ["news"], "60/100", "90/100", "news", "100/100", *2 * ["news"]]
    assert "\r" not in stream.getvalue()


def test_a_terminal_is_redrawn_and_news_does_not_run_into_the_bar(clock, terminal, monkeypatch):
    monkeypatch.setattr("sys.stderr", terminal)
    with Progress("training", total=2) as progress:
        progress.update(1)
        say("step 1  BLEU 12.00")
        clock[0] += 1
        progress.update(2)
    before, after = terminal.getvalue().split("\rstep 1  BLEU 12.00\n")
    assert "\r" in before and "\r" in after
    assert "\n" not in before and after.index("\n") == len(after) - 1


def test_a_stream_that_is_closed_does_not_stop_the_work(clock, terminal, monkeypatch):
    terminal.write = lambda text: (_ for _ in ()).throw(BrokenPipeError())
    monkeypatch.setattr("sys.stderr", terminal)
    with Progress("reading", total=2) as progress:
        for _ in range(2):
            clock[0] += 1
            progress.update(progress.n + 1)
            say("news")
    assert progress.n == 2
