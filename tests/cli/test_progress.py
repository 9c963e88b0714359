"""The progress bar: count, rate and time left on a terminal, and a line now and then in a file."""

import io
import re
import types

import pytest
import tqdm.std

from keras_transformer.cli import progress as progress_module
from keras_transformer.cli.progress import ProgressBar, say


class Terminal(io.StringIO):
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
    for module, name in ((progress_module, "monotonic"), (tqdm.std, "time")):
        monkeypatch.setattr(module, name, lambda: now[0])
    return now


@pytest.fixture
def terminal(monkeypatch):
    stream = Terminal()
    # pytest itself replaces `sys.stderr` after the fixtures.
    monkeypatch.setattr(progress_module, "sys", types.SimpleNamespace(stderr=stream))
    return stream


def test_the_line_has_count_rate_time_left_and_note_and_never_steps_back(clock, terminal):
    """Steps of an earlier run do not count as speed."""
    progress = ProgressBar("training", total=1000, unit="steps")
    progress.update(900)
    clock[0] += 10
    progress.update(920, note="loss 2.000")
    assert terminal.line.startswith("training |")
    assert terminal.line.endswith("| 920/1,000 steps [00:10<00:40,  2.00 steps/s, loss 2.000]")
    clock[0] += 1
    progress.update(910, note="validating")
    assert "| 920/1,000 steps" in terminal.line and "validating" in terminal.line


def test_a_limit_of_time_lowers_the_total(clock, terminal):
    progress = ProgressBar("training", total=1000, minutes=3, used=1)
    progress.update(100)
    clock[0] += 30
    progress.update(130)
    assert "| 130/220 [00:30<01:30" in terminal.line


def test_a_file_gets_a_line_every_half_minute_only(clock, monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    with ProgressBar("reading", total=100) as progress:
        for done in range(101):
            progress.update(done)
            clock[0] += 1
    found = [re.search(r"\d+/100", line)[0] for line in stream.getvalue().splitlines()]
    assert found == ["30/100", "60/100", "90/100"]
    assert "\r" not in stream.getvalue()


def test_news_does_not_run_into_the_bar(clock, terminal):
    with ProgressBar("training", total=2) as progress:
        progress.update(1)
        say("step 1  BLEU 12.00")
        clock[0] += 1
        progress.update(2)
    before, after = terminal.getvalue().split("\rstep 1  BLEU 12.00\n")
    assert "1/2" in before and "2/2" in after and "\n" not in before


def test_a_stream_that_is_closed_does_not_stop_the_work(terminal):
    terminal.close()
    with ProgressBar("reading", total=2) as progress:
        progress.update(1)
        say("news")
