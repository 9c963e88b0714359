"""What users get wrong, tried on every command: one line, exit status 2, no traceback, no loss."""

import io
import os
import pathlib
import sys

import pytest

from keras_transformer.inference.translator import Translator
from tests.tiny_translator import tiny_model, tiny_tokenizer

GOOD = ["a red house", "the old dog sleeps", "a child sees the bird"]

# What the line says -> commands. {model}, {good}, ... are filled in by `files`.
PROBLEMS = {
    # Missing.
    "no-such-file; not found": """
vocab --input {missing} --output {out}.model
train --tsv {missing} --valid-tsv {tsv} --output {out}
translate --model {model} --input {missing} --output {out}
average --output {out}.weights.h5 {missing}
""",
    # Of different lengths.
    "good.txt; short.txt;  3;  2": """
train --source {good} --target {short} {valid}
evaluate --model {model} --source {good} --reference {short}
""",
    # Empty.
    "empty.": """
vocab --input {good} {empty} --output {out}.model
train {pairs} --vocabulary {empty_model}
translate --model {model} --input {empty} --output {out}
""",
    # Not UTF-8.
    "invalid.txt; line 2": """
train --tsv {invalid} --valid-tsv {tsv} --output {out}
""",
    # Too long.
    "long.txt; line 2; 39": """
translate --model {model} --input {long} --output {out} --long-lines error
evaluate --model {model} --source {long} --reference {good} --output {out} --long-lines error
score --model {model} --source {long} --target {good} --output {out}
""",
    # A pipe that would be read twice.
    "pipe.txt' is a pipe; it is read more than once: give a regular file": """
vocab --input {good} {pipe} --output {out}.model
""",
    # An output that cannot be written.
    "": """
vocab --input {good} --size 290 --output {nowhere}.model
export --model {model} --output {good}
quickstart --output {good} --saved-model {out}
""",
    # An output that is read or written besides.
    "also reads or writes": """
translate --model {model} --input {good} --output {good}
translate --model {model} --input {hard} --output {short}
translate --model {model} --input {good} --output {model}/config.json
evaluate --model {model} --source {good} --reference {tsv} --output {out} --json {folder}/../output
evaluate --model {model} --source {good} --reference {good} --glossary {tsv} --output {tsv}
""",
    # A folder that would lose a file.
    "an earlier prepared corpus without other files": "prepare {pairs} --output {folder}",
    "must be a folder but": "prepare {pairs} --output {good}",
    "without other files. received": """
export --model {model} --output {model}
export --model {model} --output {project} --format transformers
import {model} --output {model}
""",
    "not be the current one or a mount point: give a folder in it": """
prepare --tsv {tsv} --valid-tsv {tsv} --output .
export --model {model} --output .
""",
}
# Commands -> a part of the line.
WRONG_VALUES = """
train --source {good} --output {out} -> --source also needs --target.
train --tsv {tsv} {valid} -> --tsv goes with --valid-tsv, --columns
train --source {good} --target {good} --valid-tsv {tsv} --output {out} -> --source goes with --ta
train --config {toml} {pairs} --vocab-size 9 -> Received: both
train --tsv {tsv} --columns 2 --output {out} -> two numbers from 1 or two names. Received: '2'
train --tsv {tsv} --columns en,de --output {out} -> good.tsv' has no column 'en'; without names
train --tsv {named} --columns 1,en --output {out} -> Received: 0 and 'en', which are the same
train {pairs} --vocabulary {model}/tokenizer.model --vocab-size 9 -> Received: both
train {pairs} --vocabulary {model}/tokenizer.model --no-shared-vocabulary -> one for both languages
evaluate --hypothesis {good} --reference {good} --batch-size 3 -> --batch-size goes with --model
quickstart --output {out} --saved-model {out} -> must be another folder than --output
train --tsv {one} --output {out} -> too few different sources to hold validation pairs out of it
train --corpus a=much:{good},{good} {valid} -> with a number above 0 for WEIGHT. Received: 'a=much
train --corpus a=1:{good},{good} --corpus a=2:{good},{good} {valid} -> differ. Received: 'a' twice
train --dropout 1 -> --dropout: expected a number from 0 to below 1
translate --model {model} --input {good} TEXT -> from the command line or from --input, not from bo
train {pairs} --vocabulary {tsv} -> A vocabulary is a .model or .txt file
train {pairs} --also-valid general={good} -> --also-valid is NAME=SOURCE,TARGET. Received: 'general
train {pairs} --also-valid valid={good},{good} -> other than train and valid. Received: 'valid=
train --prepared {folder} --output {out} -> is not a prepared corpus: it has no prepared.json
train {pairs} --vocabulary {tsv} --normalization identity -> --vocabulary brings a vocabulary with
train {pairs} --vocabulary-type subword --normalization nfkc -> subword takes the text as it is
vocab --input {good} --output {out}.txt --type subword --normalization nfkc -> goes with --type
train --plan --vocabulary-type subword -> --plan needs --vocab-size
train --plan --trees {good} -> --trees goes with --task parsing
train --plan --experiment wsj-parsing --task translation -> wsj-parsing is for --task parsing
train --plan --jit-compile --gpus 2 -> --jit-compile works on one device only
train --device-memory 8 --output {out} -> --device-memory goes with --plan
train --plan --num-heads 7 -> `--num-heads` must divide
prepare {pairs} --vocabulary {model}/tokenizer.model --part 2 -> --part is I/P, with I from 1 to P
prepare {pairs} --part 1/3 -> --part needs --vocabulary, a file of `keras-transformer vocab` for al
translate --model {model} --input {good} --beam-size 2 --n-best 3 -> --n-best
evaluate --model {model} --reference {good} -> --model needs --source
evaluate --hypothesis {good} --dataset a/b -> needs --source-language
evaluate --hypothesis {good} -> --reference FILE or from --dataset NAME
evaluate --task parsing --hypothesis {good} -> of gold trees. Received: 0 files
average --model {model} --last 3 -> keeps 0 checkpoints
vocab --input {good} --output {out}.txt -> must end in .model
"""


@pytest.fixture
def files(tmp_path, text, model):
    """Names in the tables -> files."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "precious.txt").write_text("kept")
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "README.md").write_text("Not of ours.")
    text("short.txt", GOOD[:-1])
    (tmp_path / "hard").hardlink_to(tmp_path / "short.txt")
    os.mkfifo(tmp_path / "pipe.txt")
    good, tsv = text("good.txt", GOOD), text("good.tsv", [f"{line}\t{line}" for line in GOOD])
    out = tmp_path / "output"
    return {
        "valid": f"--valid-source {good} --valid-target {good} --output {out}",
        "pairs": f"--tsv {tsv} --valid-tsv {tsv} --output {out}",
        **{name: tmp_path / name for name in ("hard", "model", "folder", "project")},
        "pipe": tmp_path / "pipe.txt",
        "good": good,
        "tsv": tsv,
        "toml": text("settings.toml", ["[vocabulary]", f'vocabulary = "{model}/tokenizer.model"']),
        "named": text("named.tsv", ["en\tde", *(f"{line}\t{line}" for line in GOOD)]),
        "one": text("one.tsv", ["a\tb", "a\tc"]),
        "short": tmp_path / "short.txt",
        "empty": text("empty.txt", []),
        "empty_model": text("empty.model", []),
        "invalid": text("invalid.txt", b"a red\thouse\na b\xffd\xfe\tline\na\tboat\n"),
        "long": text("long.txt", [GOOD[0], "red house " * 30, GOOD[2]]),
        "missing": tmp_path / "no-such-file",
        "nowhere": tmp_path / "no-such-folder" / "output",
        "out": out,
    }


@pytest.fixture
def fails(refuse, files, tmp_path):
    """Calls a command that must fail and leave all files as they are; returns its line."""

    def run_command(command):
        before = snapshot(tmp_path)
        line = refuse(*command.format(**files).split())
        assert snapshot(tmp_path) == before
        return line

    return run_command


def commands(table):
    return table.strip().splitlines()


def snapshot(folder):
    """Every file below a folder with its content."""
    paths = (pathlib.Path(root) / name for root, _, names in os.walk(folder) for name in names)
    return {path: path.read_bytes() for path in paths if path.is_file()}


@pytest.mark.parametrize(
    "parts, command", [(parts, each) for parts in PROBLEMS for each in commands(PROBLEMS[parts])]
)
def test_a_file_that_cannot_be_used_is_named(fails, parts, command):
    line = fails(command)
    assert all(part in line or part in line.lower() for part in parts.split("; "))
    # Some of the errors are the system's.
    assert parts or any(name in line for name in ("no-such-folder", "good.txt"))


def test_an_over_long_target_is_named_with_its_line_and_never_cut(refuse, text, tmp_path):
    """The line counts from the file's start, also beyond the first 1,024 lines."""
    model = tiny_model(position="learned", max_length=40)
    Translator(model, tiny_tokenizer(), extra_length=12).save(tmp_path / "learned")
    source = text("many.txt", ["a red house"] * 1030)
    target = text("target.txt", ["a red house"] * 1028 + ["red house " * 30, "a dog"])
    line = refuse("score", "--model", tmp_path / "learned", "--source", source, "--target", target,
                  "--long-lines", "truncate")  # fmt: skip
    assert "target.txt', line 1029: " in line and "39" in line


@pytest.mark.parametrize("name", ["config.json", "model.weights.h5", "tokenizer.model"])
def test_a_damaged_model_directory_is_named_with_the_file(fails, model, name):
    command = "translate --model {model} --input {good} --output {out}"
    content = (model / name).read_bytes()
    (model / name).write_bytes(content[: len(content) // 2])
    assert name in fails(command)
    (model / name).unlink()
    assert name in fails(command)


@pytest.mark.parametrize("command, part", [x.split(" -> ") for x in commands(WRONG_VALUES)])
def test_a_wrong_value_is_named_with_what_is_allowed(fails, command, part):
    assert part in fails(command)


def test_other_encodings_are_named(refuse, text, model, monkeypatch):
    """With and without a byte order mark, from files and from standard input."""
    path = text("other.txt", "A red house.\n".encode("utf-32"))
    line = refuse("vocab", "--size", 300, "--output", "v.model", "--input", path)
    assert "iconv -f UTF-32 -t UTF-8" in line and line.endswith("Received: UTF-32")
    content = io.BytesIO("A red house.\n".encode("utf-16-le"))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(content))
    assert "iconv -f UTF-16 -t UTF-8" in refuse("translate", "--model", model)
