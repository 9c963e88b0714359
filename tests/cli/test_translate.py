"""`translate`: every line of a file, a pipe or standard input, and other draws for each chunk."""

import os
import threading

import pytest

from keras_transformer.decoding import Sampling
from tests.tiny_translator import sentence, tiny_translator

LINES = [sentence(2 + seed % 4, seed) for seed in range(7)]


@pytest.fixture
def pipe(tmp_path):
    """A named pipe that gives `LINES` once, as `<(zcat lines.gz)` does."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    content = "".join(f"{line}\n" for line in LINES)
    writer = threading.Thread(target=path.write_text, args=(content,), daemon=True)
    writer.start()
    yield path
    writer.join(timeout=10)


def test_a_pipe_is_translated_whole_as_a_file_is(run, saved_model_directory, text, pipe):
    options = ["--model", saved_model_directory, "--beam-size", 1, "--chunk-size", 3]
    from_file = run("translate", *options, "--input", text("lines.txt", LINES))
    from_pipe = run("translate", *options, "--input", pipe)
    assert (from_file.status, from_pipe.status) == (0, 0)
    assert from_pipe.output == from_file.output
    assert from_pipe.output.count("\n") == len(LINES)


def test_an_over_long_line_of_a_pipe_is_named(run, saved_model_directory, tmp_path):
    reader, writer = os.pipe()
    os.write(writer, ("a dog\n" + "red house " * 30 + "\n").encode())
    os.close(writer)
    outcome = run("translate", "--model", saved_model_directory, "--input", f"/dev/fd/{reader}",
                  "--output", tmp_path / "out.txt")  # fmt: skip
    os.close(reader)
    assert outcome.status == 2
    assert f"/dev/fd/{reader}', line 2: " in outcome.errors
    assert not (tmp_path / "out.txt").exists()


def test_a_sampling_model_draws_other_numbers_for_each_chunk(run, text, tmp_path):
    tiny_translator(search=Sampling(seed=5)).save(tmp_path / "model")
    path = text("same.txt", ["a red house"] * 4)
    options = ["--model", tmp_path / "model", "--input", path, "--chunk-size", 1]
    first = run("translate", *options)
    assert first.status == 0, first.errors
    assert len(set(first.output.splitlines())) > 1
    assert run("translate", *options).output == first.output
