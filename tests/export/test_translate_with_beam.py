"""`examples/translate_with_beam.py` keeps the order of lines, and sets aside those that fail."""

import gzip
import math
import pathlib
import runpy
import sys

import pytest

from tests.docs.page_blocks import ROOT

pytest.importorskip("apache_beam", reason="needs apache-beam: pip install '.[beam]'")
tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.tensorflow_only("the example loads SavedModels")

SCRIPT = ROOT / "examples/translate_with_beam.py"
LOCAL = ["--runner", "FnApiRunner"]
NOT_UTF8 = "the line is not valid UTF-8 (byte 4 is 0xff)"
TOO_LONG = "the line is longer than the model reads"


class UpperCase(tf.Module):
    """Reads up to 100 bytes, and fails with a batch that has a poisoned text."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def __call__(self, text):
        is_poisoned = tf.strings.regex_full_match(text, ".*poison.*")
        check = tf.debugging.Assert(~tf.reduce_any(is_poisoned), ["a poisoned\n text"])
        with tf.control_dependencies([check]):
            answers = tf.strings.regex_replace(tf.strings.upper(text), ",", "\n")
        scores = tf.where(text == "", 0.0, tf.where(text == "no code", -math.inf, -1.0))
        return {"translation": answers, "score": scores, "truncated": tf.strings.length(text) > 100}


def save_upper_case(folder):
    module = UpperCase()
    tf.saved_model.save(module, str(folder), signatures={"serving_default": module.__call__})
    return folder


def translate(monkeypatch, *options):
    """Runs the script in this process, with shards of 7 lines."""
    text = SCRIPT.read_text("utf-8")
    small = text.replace("LINES_PER_SHARD = 100_000", "LINES_PER_SHARD = 7")
    assert small != text
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *map(str, options)])
    pathlib.Path("script.py").write_text(small, "utf-8")
    runpy.run_path("script.py", run_name="__main__")


@pytest.fixture(autouse=True)
def relative_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_line_n_stays_line_n_and_failed_lines_are_set_aside(suffix, tmp_path, monkeypatch, capsys):
    lines = [f"line {number}".encode() for number in range(1, 61)]
    lines[1], lines[7], lines[20] = b"", b"abc\xff", b"x" * 101
    lines[30] = b"no code"
    lines[21], lines[40], lines[59] = b"a poison", b"ends\r", "a\u2028b, c\x00 \u00e4".encode()
    expected = [line.decode(errors="replace").upper() for line in lines]
    failed = {8: NOT_UTF8, 21: TOO_LONG, 22: "the model fails: "}
    failed[31] = "the model has no answer; does the line lack the code of a language?"
    for number in failed:
        expected[number - 1] = ""
    expected[40], expected[59] = "ENDS", "A\u2028B  C\x00 \u00e4"
    content = b"\xef\xbb\xbf" + b"\n".join(lines)
    source, output, reasons = (pathlib.Path(f"{name}{suffix}") for name in ("in", "out", "failed"))
    if suffix:  # two packed files, one after the other
        content = gzip.compress(content[:90]) + gzip.compress(content[90:])
    source.write_bytes(content)
    options = ("--model", save_upper_case(tmp_path / "model"), "--input", source)
    options += ("--output", output, "--failed", reasons, "--batch-size", 8, *LOCAL)
    translate(monkeypatch, *options)
    assert "set 4 lines aside" in capsys.readouterr().out
    found, told = (path.read_bytes() for path in (output, reasons))
    found, told = map(gzip.decompress, (found, told)) if suffix else (found, told)
    assert found.decode().split("\n") == [*expected, ""]
    numbers, texts = zip(*(line.split("\t") for line in told.decode().splitlines()), strict=True)
    assert list(map(int, numbers)) == list(failed)
    assert all(text.startswith(begin) for text, begin in zip(texts, failed.values(), strict=True))
    assert "a poisoned" in texts[2]
    names = {f"in{suffix}", f"out{suffix}", f"failed{suffix}", "model", "script.py"}
    assert {path.name for path in tmp_path.iterdir()} == names
