"""The progress bar: count, rate and time left on a terminal, and silence where nobody watches."""

import io
import threading

import pytest

from keras_transformer.cli import progress as progress_module
from keras_transformer.cli.progress import Progress, format_seconds, say


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    """A clock that moves when it is told to."""
    now = [100.0]
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize(
    "seconds, text", [(0.4, "0s"), (59.6, "1:00"), (125, "2:05"), (3723, "1:02:03")]
)
def test_durations_read_as_people_write_them(seconds, text):
    assert format_seconds(seconds) == text


def test_the_line_has_count_rate_and_time_left(clock):
    progress = Progress("translating", total=100, unit="lines", stream=io.StringIO())
    progress.update(0)
    clock[0] += 10
    progress.update(20, note="loss 2.000")
    assert progress.line() == (
        "translating [=====                   ] 20/100 lines  2.0/s  40s left  loss 2.000"
    )


def test_the_nearer_end_of_steps_and_minutes_counts(clock):
    progress = Progress("training", 100, "steps", minutes=1.0, stream=io.StringIO())
    progress.update(0)
    clock[0] += 15
    progress.update(10)
    assert progress.line() == "training [======                  ] 10/100 steps  0.7/s  45s left"
    progress.update(75)
    assert progress.line() == "training [==================      ] 75/100 steps  5.0/s  5s left"


def test_minutes_alone_make_a_bar(clock):
    progress = Progress("training", unit="steps", minutes=1.0, stream=io.StringIO())
    progress.update(900)
    clock[0] += 30
    assert progress.line() == "training [============            ] 900 steps  30s left"
    clock[0] += 31
    assert "[========================]" in progress.line() and "left" not in progress.line()


def test_the_bar_never_steps_back(clock):
    progress = Progress("training", total=100, stream=io.StringIO())
    filled = []
    for done, note in ((10, ""), (30, "preparing"), (20, "loss 1.268  12,345 tokens/s"), (31, "")):
        progress.update(done, note=note)
        filled.append(progress.line(columns=80).count("="))
    assert progress.done == 31
    assert filled == sorted(filled)


def test_a_terminal_moves_without_news(monkeypatch):
    monkeypatch.setattr(progress_module, "_TICK", 0.01)
    stream, drawn = Terminal(), threading.Event()
    write = stream.write
    stream.write = lambda text: (write(text), "preparing" in text and drawn.set())
    with Progress("training", total=5, stream=stream) as progress:
        progress.update(0, note="preparing the first step")
        assert drawn.wait(60)


def test_a_narrow_terminal_gets_a_shorter_bar_and_all_of_the_note(clock):
    progress = Progress("training", total=1000, unit="steps", stream=io.StringIO())
    progress.update(1, note="loss 1.268  12,345 tokens/s")
    clock[0] += 10
    progress.update(438, note="loss 1.268  12,345 tokens/s")
    line = progress.line(columns=80)
    assert "[==   ]" in line and line.endswith("12,345 tokens/s")
    assert len(line) < 80


def test_steps_of_an_earlier_run_do_not_count_as_speed(clock):
    progress = Progress("training", total=1000, stream=io.StringIO())
    progress.update(901)
    clock[0] += 10
    progress.update(911)
    assert "1.0/s  1:29 left" in progress.line()


def test_a_terminal_is_redrawn_in_place(clock):
    stream = Terminal()
    with Progress("reading", total=2, stream=stream) as progress:
        for _ in range(2):
            clock[0] += 1
            progress.update(progress.done + 1)
    text = stream.getvalue()
    assert text.count("\n") == 1 and text.endswith("\n")
    assert text.count("\r") >= 2


def test_a_file_gets_a_line_every_half_minute_only(clock):
    stream = io.StringIO()
    with Progress("reading", total=100, stream=stream) as progress:
        for _ in range(100):
            clock[0] += 1
            progress.update(progress.done + 1)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 3
    assert not any("\r" in line for line in lines)


def test_short_work_leaves_nothing_in_a_file():
    stream = io.StringIO()
    with Progress("reading", total=3, stream=stream) as progress:
        progress.update(3)
    assert stream.getvalue() == ""


def test_news_does_not_run_into_the_bar(clock, monkeypatch):
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    with Progress("training", total=10) as progress:
        clock[0] += 1
        progress.update(progress.done + 1)
        say("step 1  BLEU 12.00")
    assert "\rstep 1  BLEU 12.00\n" in stream.getvalue()


def test_a_stream_that_is_closed_does_not_stop_the_work(clock):
    stream = Terminal()
    progress = Progress("reading", total=2, stream=stream)
    stream.close = lambda: None
    stream.write = lambda text: (_ for _ in ()).throw(BrokenPipeError())
    clock[0] += 1
    progress.update(progress.done + 1)
    assert progress.done == 1
