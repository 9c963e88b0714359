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


def test_constraints_and_prefixes_shape_the_answers(run, saved_model_directory, text, tmp_path):
    path = text("lines.txt", LINES)
    prefixes = text("prefixes.txt", ["a red", *[""] * 5, "the boat"])
    options = ["--model", saved_model_directory, "--input", path, "--chunk-size", 3]
    plain = run("translate", *options)
    assert run("translate", *options, "--suppress-unknown").output == plain.output
    found = run("translate", *options, "--prefix", prefixes)
    assert found.status == 0, found.errors
    lines, before = found.output.splitlines(), plain.output.splitlines()
    assert lines[0].startswith("a red") and lines[6].startswith("the boat")
    assert lines[1:6] == before[1:6]
    longer = run("translate", *options, "--min-length", 9, "--no-repeat-ngram", 1)
    assert longer.status == 0 and longer.output != plain.output
    short = text("short.txt", ["a"])
    outcome = run("translate", *options, "--prefix", short, "--output", tmp_path / "out.txt")
    assert outcome.status == 2 and "with 1, and more lines of input" in outcome.errors
    assert not (tmp_path / "out.txt").exists()


@pytest.mark.parametrize("number,received", [(5, "more"), (8, "7")])
def test_a_pipe_of_another_length_than_its_prefixes_is_found_out(
    run, saved_model_directory, text, pipe, tmp_path, number, received
):
    prefixes = text("prefixes.txt", ["a"] * number)
    outcome = run("translate", "--model", saved_model_directory, "--input", pipe, "--chunk-size",
                  "6", "--prefix", prefixes, "--output", tmp_path / "out.txt")  # fmt: skip
    assert outcome.status == 2
    assert f"with {number}, and {received} lines of input" in outcome.errors
    assert not (tmp_path / "out.txt").exists()


def test_scores_of_tokens_sum_to_those_of_lines(run, saved_model_directory, text):
    options = ["--model", saved_model_directory]
    paths = ["--source", text("source.txt", LINES), "--target", text("target.txt", LINES[::-1])]
    outcome = run("score", *options, *paths, "--per-token")
    assert outcome.status == 0, outcome.errors
    for line in outcome.output.splitlines():
        total, number, tokens = line.split("\t")
        tokens = [float(token) for token in tokens.split()]
        assert len(tokens) == int(number)
        assert sum(tokens) == pytest.approx(float(total), abs=1e-4)
    without = run("score", *options, *paths).output
    assert without.splitlines() == [x.rpartition("\t")[0] for x in outcome.output.splitlines()]
