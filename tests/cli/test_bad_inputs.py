"""What users get wrong, tried on every command: one line, exit status 2, no traceback, no loss."""

import io
import os
import pathlib
import subprocess
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
train --source {missing} --target {good} {valid}
train --tsv {missing} --valid-tsv {tsv} --output {out}
train --config {missing} --output {out}
train {pairs} --also-valid general={good},{missing}
translate --model {model} --input {missing} --output {out}
evaluate --hypothesis {good} --reference {good} {missing}
shortlist --model {model} --source {good} --target {missing}
average --output {out}.weights.h5 {missing}
""",
    # Of different lengths.
    "good.txt; short.txt;  3;  2": """
train --source {good} --target {short} {valid}
train --corpus a=1:{good},{good} --corpus b=1:{good},{short} {valid}
evaluate --model {model} --source {good} --reference {short}
score --model {model} --source {good} --target {short} --output {out}
""",
    # Empty.
    "empty.": """
vocab --input {good} {empty} --output {out}.model
train --source {empty} --target {empty} {valid}
train {pairs} --vocabulary {empty_model}
translate --model {model} --input {empty} --output {out}
evaluate --model {model} --source {good} --reference {empty}
average --output {out}.weights.h5 {empty}
""",
    # Not UTF-8.
    "invalid.txt; line 2": """
vocab --input {good} {invalid} --output {out}.model
train --tsv {invalid} --valid-tsv {tsv} --output {out}
translate --model {model} --input {invalid} --output {out}
""",
    # Not TOML.
    "invalid.txt": "train --config {invalid} --output {out}",
    # Too long.
    "long.txt; line 2; 39": """
translate --model {model} --input {long} --output {out} --long-lines error
translate --model {model} --input {long} --output {out} --n-best 2
evaluate --model {model} --source {long} --reference {good} --output {out} --long-lines error
score --model {model} --source {long} --target {good} --output {out}
""",
    # A pipe that would be read twice.
    "pipe.txt' is a pipe; it is read more than once: give a regular file": """
vocab --input {good} {pipe} --output {out}.model
train --source {pipe} --target {good} {valid}
""",
    # An output that cannot be written.
    "": """
vocab --input {good} --size 290 --output {nowhere}.model
train {pairs} --output {good}
translate --model {model} --input {good} --output {nowhere}
evaluate --model {model} --source {good} --reference {good} --output {nowhere}
average --output {nowhere}.weights.h5 {model}/model.weights.h5
export --model {model} --output {good}
quickstart --output {good} --saved-model {out}
""",
    # An output that is read or written besides.
    "also reads or writes": """
vocab --input {tsv} {link}.model --output {good}.model
translate --model {model} --input {good} --output {good}
translate --model {model} --input {good} --prefix {hard} --output {short}
translate --model {model} --input {hard} --output {short}
translate --model {model} --input {good} --output {model}/config.json
parse --model {model} --input {good} --output {link}
evaluate --model {model} --source {good} --reference {tsv} --output {out} --json {folder}/../output
evaluate --task parsing --hypothesis {short} --reference {tsv} --table {hard}
average --output {model}/model.weights.h5 {model}/model.weights.h5
""",
    # A folder that would lose a file.
    "would replace": "prepare --tsv {prepared}/valid.jsonl --valid-tsv {tsv} --output {prepared}",
    "an earlier prepared corpus without other files": "prepare {pairs} --output {folder}",
    "must be a folder but": "prepare {pairs} --output {good}",
    "without other files. received": """
export --model {model} --output {model}
export --model {model} --output {folder} --format litert
""",
}
DAMAGES = ("no folder", "no config", "cut config", "no weights", "cut weights", "no tokenizer",
           "cut tokenizer")  # fmt: skip
WRONG_MODEL = """
translate --model {model} --input {good} --output {out}
export --model {model} --output {out}
average --model {model} --last 2
"""
# Commands -> a part of the line.
WRONG_VALUES = """
train --preset huge {pairs} -> 'huge'
train --output {out} -> --source and --target, from --tsv, from --corpus, or from --dataset
train --tsv {tsv} --source {good} --output {out} -> Received: --source, --tsv
train --source {good} --output {out} -> --source also needs --target.
train --source {good} --target {good} --columns 1,2 --output {out} -> --target, --columns
train --tsv {tsv} --columns 2 --output {out} -> two numbers from 1 or two names. Received: '2'
train --tsv {tsv} --columns en,de --output {out} -> good.tsv' has no column 'en'; without names
train --tsv {one} --output {out} -> too few different sources to hold validation pairs out of it
train {pairs} --start-from {missing} -> Model directory not found: '
train --tsv {tsv} --valid-tsv {tsv} -> --output DIR is required
train --corpus a=1:{good},{good} --output {out} -> --corpus also needs --valid-source and --valid-
train --corpus a=0:{good},{good} {valid} -> 'a' must be a finite number above 0. Received: 0.0
train --corpus a=much:{good},{good} {valid} -> with a number above 0 for WEIGHT. Received: 'a=much
train --corpus a=1:{good},{good} --corpus a=2:{good},{good} {valid} -> differ. Received: 'a' twice
train --corpus a=1:{good},{good},<unk> {valid} -> must not be one of the reserved pieces
train --corpus a=1:{good},{good},<bt> --vocabulary {model}/tokenizer.model {valid} \
    -> it has: none. Received: the tag '<bt>'
train --corpus a=1:{good},{good},<bt> --start-from {model} {valid} -> Received: the tag '<bt>'
train --dataset no_such_translation --source-language en --target-language de --output {out} \
    -> 'no_such_translation'
train --dropout 1 -> --dropout: expected a number from 0 to below 1
train --droput 0.1 -> unknown option --droput (did you mean --dropout?)
train -source {good} -> unknown option -source (did you mean --source?)
translate --modle {model} --input {good} -> unknown option --modle (did you mean --model?)
translate --model {model} --zzz -> unknown option --zzz (see
translate --model {model} --input {good} TEXT -> from the command line or from --input, not from bo
train {pairs} --vocabulary {tsv} -> A vocabulary is a .model or .txt file
train {pairs} --also-valid general={good} -> --also-valid is NAME=SOURCE,TARGET. Received: 'general
train {pairs} --also-valid a={good},{good} --also-valid a={good},{good} \
    -> Each --also-valid needs a name of its own, other than train and valid. Received: 'a=
train {pairs} --also-valid valid={good},{good} -> other than train and valid. Received: 'valid=
train {pairs} --freeze encoder,head -> --freeze: expected one or two of encoder, decoder and
train --prepared {folder} --output {out} -> is not a prepared corpus: it has no prepared.json
train --experiment wmt15 --plan -> invalid choice: 'wmt15' (choose from 'wmt14-en-de-base'
train --plan --vocabulary-type subword -> --plan needs --vocab-size
train --plan --device-memory 0 -> --device-memory: expected a number above 0
train --plan --jit-compile --gpus 2 -> --jit-compile works on one device only
train --device-memory 8 --output {out} -> --device-memory goes with --plan
train --plan --num-heads 7 -> `--num-heads` must divide
prepare {pairs} --vocabulary {model}/tokenizer.model --part 2 -> --part is I/P, with I from 1 to P
prepare {pairs} --part 1/3 -> --part needs --vocabulary, a file of `keras-transformer vocab` for al
prepare {pairs} --max-length 70000 -> --max-length must be from 1 to 65535
prepare {pairs} --vocabulary {model}/tokenizer.model --max-length 1 -> No sentence pair is left of 3
translate --model {model} --input {good} --beam-size 2 --n-best 3 -> --n-best
evaluate --model {model} --reference {good} -> --model needs --source
evaluate --hypothesis {good} --source {good} --reference {good} -> --source goes
evaluate --hypothesis {good} -> --reference FILE or from --dataset NAME
evaluate --task parsing --hypothesis {good} -> of gold trees. Received: 0 files
evaluate --hypothesis {good} --reference {good} --split test -> with --dataset
evaluate --hypothesis {good} --dataset a/b -> needs --source-language
evaluate --model {model} --source {good} --dataset a/b --source-language en --target-language de \
    -> takes the place of --source
evaluate --hypothesis {good} --reference {good} --suppress-unknown -> --suppress-unknown goes with
score --model {model} --source {good} --target {good} --long-lines split \
    -> --long-lines: invalid choice: 'split'
average --output {out} -> Give the checkpoints
average --model {model} --output {out} {good} -> not both
average --model {model} --last 3 -> keeps 0 checkpoints
average --output {out} {model}/model.weights.h5 -> .weights.h5
vocab --input {good} --size 2147483648 --output {out}.model \
    -> must be a positive integer below 2**31. Received: --size 2147483648
vocab --input {good} --output {out}.txt -> must end in .model
vocab --input {good} --output {out}.txt --type subword --symbols <bt> -> for --type bpe and unigram
vocab --input {good} --output {out}.model --symbols <s> -> must not be one of the reserved pieces
"""


@pytest.fixture
def files(tmp_path, text, model):
    """Names in the tables -> files."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "precious.txt").write_text("kept")
    (tmp_path / "prepared").mkdir()
    text("prepared/valid.jsonl", ["a\tb"])
    text("prepared/prepared.json", ["{}"])
    text("good.txt.model", GOOD)
    text("short.txt", GOOD[:-1])
    (tmp_path / "link.model").symlink_to("good.txt.model")
    (tmp_path / "link").symlink_to("good.txt")
    (tmp_path / "hard").hardlink_to(tmp_path / "short.txt")
    os.mkfifo(tmp_path / "pipe.txt")
    good, tsv = text("good.txt", GOOD), text("good.tsv", [f"{line}\t{line}" for line in GOOD])
    out = tmp_path / "output"
    return {
        "valid": f"--valid-source {good} --valid-target {good} --output {out}",
        "pairs": f"--tsv {tsv} --valid-tsv {tsv} --output {out}",
        **{name: tmp_path / name for name in ("prepared", "link", "hard", "model", "folder")},
        "pipe": tmp_path / "pipe.txt",
        "good": good,
        "tsv": tsv,
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
    assert parts or any(name in line for name in ("no-such-folder", "folder", "good.txt"))


def test_an_over_long_target_is_named_with_its_line_and_never_cut(refuse, text, tmp_path):
    """The line counts from the file's start, also beyond the first 1,024 lines."""
    model = tiny_model(position="learned", max_length=40)
    Translator(model, tiny_tokenizer(), extra_length=12).save(tmp_path / "learned")
    source = text("many.txt", ["a red house"] * 1030)
    target = text("target.txt", ["a red house"] * 1028 + ["red house " * 30, "a dog"])
    line = refuse("score", "--model", tmp_path / "learned", "--source", source, "--target", target,
                  "--long-lines", "truncate")  # fmt: skip
    assert "target.txt', line 1029: " in line and "39" in line


def test_standard_streams_that_are_files_are_no_exception(files):
    """`translate < text >> text` would read what it writes, for ever."""
    command = [sys.executable, "-m", "keras_transformer.cli", "translate", "--model"]
    command.append(files["model"])
    before = files["good"].read_bytes()
    with open(files["good"]) as source, open(files["good"], "a") as output:
        done = subprocess.run(command, stdin=source, stdout=output, stderr=subprocess.PIPE)
    assert done.returncode == 2 and b"also reads or writes" in done.stderr
    assert files["good"].read_bytes() == before


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("command", commands(WRONG_MODEL))
def test_a_damaged_model_directory_is_named_with_the_file(fails, model, command, damage):
    kind, what = damage.split()
    if "average" in command and what in ("weights", "tokenizer"):
        pytest.skip("average reads checkpoints, not the weights and the tokenizer")
    name = {"config": "config.json", "weights": "model.weights.h5", "tokenizer": "tokenizer.model"}
    if what == "folder":
        model.rename(model.with_name("gone"))
    elif kind == "no":
        (model / name[what]).unlink()
    else:
        content = (model / name[what]).read_bytes()
        (model / name[what]).write_bytes(content[: len(content) // 2])
    assert name.get(what, "model") in fails(command)


def test_a_tokenizer_that_is_not_installed_is_named_before_the_work(fails, monkeypatch):
    monkeypatch.setitem(sys.modules, "MeCab", None)
    monkeypatch.delitem(sys.modules, "sacrebleu.tokenizers.tokenizer_ja_mecab", raising=False)
    monkeypatch.setattr(Translator, "load", None)
    line = fails("evaluate --model {model} --source {good} --reference {good} --tokenize ja-mecab")
    assert "sacrebleu[ja]" in line and "--tokenize" in line and "ja-mecab" in line


@pytest.mark.parametrize("command, part", [x.split(" -> ") for x in commands(WRONG_VALUES)])
def test_a_wrong_value_is_named_with_what_is_allowed(fails, command, part):
    assert part in fails(command)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32"])
@pytest.mark.parametrize("command", ["vocab --size 300 --output v.model --input {}", "translate"])
def test_other_encodings_are_named(refuse, text, model, monkeypatch, encoding, command):
    """With and without a byte order mark, from files and from standard input."""
    path = text("other.txt", "A red house.\nA dog.\n".encode(encoding))
    words = command.format(path).split()
    if command == "translate":
        words += ["--model", model]
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes())))
    line, name = refuse(*words), "UTF-32" if encoding == "utf-32" else "UTF-16"
    assert f"iconv -f {name} -t UTF-8" in line and line.endswith(f"Received: {name}")


@pytest.mark.parametrize(
    "command, option",
    [("vocab --output {out}.model --input {good}", "--size"), ("prepare {pairs}", "--vocab-size")],
)
def test_options_are_named_as_they_were_given(fails, command, option):
    line = fails(f"{command} {option} 90")
    assert f"{option} 90" in line and "vocab_size" not in line


def test_files_of_an_option_that_is_given_twice_are_all_read(succeed, text, tmp_path):
    first, second = text("first.txt", ["a b"]), text("second.txt", ["c d"])
    for given in ([first, second], [first, "--input", second]):
        output = tmp_path / "v.txt"
        succeed("vocab", "--type", "subword", "--output", output, "--input", *given)
        assert {"a", "b", "c", "d"} <= set(output.read_text().split())
    scored = ["evaluate", "--hypothesis", first, "--reference", second]
    once, twice = succeed(*scored, first).output, succeed(*scored, "--reference", first).output
    assert once == twice and "nrefs:2" in once
