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

# What is wrong -> (arguments, part of the line). {model}, {good}, ... are filled in by `files`.
MISSING = {
    "vocab": "--input {missing} --output {out}.model",
    "train source": "--source {missing} --target {good} --valid-source {good} --valid-target {good}"
    " --output {out}",
    "train valid": "--source {good} --target {good} --valid-source {good} --valid-target {missing}"
    " --output {out}",
    "train tsv": "--tsv {missing} --valid-tsv {tsv} --output {out}",
    "train config": "--config {missing} --output {out}",
    "train vocabulary": "--tsv {tsv} --valid-tsv {tsv} --vocabulary {missing}.model --output {out}",
    "translate": "--model {model} --input {missing} --output {out}",
    "evaluate source": "--model {model} --source {missing} --reference {good}",
    "evaluate reference": "--hypothesis {good} --reference {good} {missing}",
    "score": "--model {model} --source {good} --target {missing} --output {out}",
    "average": "--output {out}.weights.h5 {missing}",
}
DIFFERENT_LENGTHS = {
    "train": "--source {good} --target {short} --valid-source {good} --valid-target {good}"
    " --output {out}",
    "train valid": "--source {good} --target {good} --valid-source {good} --valid-target {short}"
    " --output {out}",
    "evaluate": "--model {model} --source {good} --reference {short}",
    "evaluate hypothesis": "--hypothesis {good} --reference {good} {short} --json {out}",
    "score": "--model {model} --source {good} --target {short} --output {out}",
}
EMPTY = {
    "vocab": "--input {good} {empty} --output {out}.model",
    "train": "--source {empty} --target {empty} --valid-source {good} --valid-target {good}"
    " --output {out}",
    "train tsv": "--tsv {tsv} --valid-tsv {empty} --output {out}",
    "train vocabulary": "--tsv {tsv} --valid-tsv {tsv} --vocabulary {emptymodel} --output {out}",
    "translate": "--model {model} --input {empty} --output {out}",
    "evaluate": "--model {model} --source {good} --reference {empty}",
    "evaluate hypothesis": "--hypothesis {empty} --reference {good}",
    "score": "--model {model} --source {empty} --target {empty} --output {out}",
    "average": "--output {out}.weights.h5 {empty}",
}
INVALID_UTF8 = {
    "vocab": "--input {good} {invalid} --output {out}.model",
    "train": "--source {good} --target {invalid} --valid-source {good} --valid-target {good}"
    " --output {out}",
    "train tsv": "--tsv {invalid} --valid-tsv {tsv} --output {out}",
    "train config": "--config {invalid} --output {out}",
    "translate": "--model {model} --input {invalid} --output {out}",
    "evaluate": "--model {model} --source {good} --reference {invalid}",
    "evaluate hypothesis": "--hypothesis {invalid} --reference {good}",
    "score": "--model {model} --source {good} --target {invalid} --output {out}",
}
OVER_LONG_LINE = {
    "translate": "--model {model} --input {long} --output {out} --long-lines error",
    "translate n-best": "--model {model} --input {long} --output {out} --n-best 2",
    "evaluate": "--model {model} --source {long} --reference {good} --output {out}"
    " --long-lines error",
    "score": "--model {model} --source {long} --target {good} --output {out}",
}
PIPES = {
    "vocab": "--input {good} {pipe} --output {out}.model",
    "train source": "--source {pipe} --target {good} --valid-source {good} --valid-target {good}"
    " --output {out}",
    "train target": "--source {good} --target {pipe} --valid-source {good} --valid-target {good}"
    " --output {out}",
    "train valid": "--tsv {tsv} --valid-tsv {pipe} --output {out}",
}
UNWRITABLE = {
    "vocab": "--input {good} --size 290 --output {nowhere}.model",
    "train": "--source {good} --target {good} --valid-source {good} --valid-target {good}"
    " --output {good}",
    "translate": "--model {model} --input {good} --output {nowhere}",
    "translate folder": "--model {model} --input {good} --output {folder}",
    "evaluate": "--hypothesis {good} --reference {good} --json {nowhere}",
    "evaluate output": "--model {model} --source {good} --reference {good} --output {nowhere}",
    "score": "--model {model} --source {good} --target {good} --output {nowhere}",
    "average": "--output {nowhere}.weights.h5 {model}/model.weights.h5",
    "export": "--model {model} --output {good}",
    "export folder": "--model {model} --output {folder}",
    "quickstart": "--output {good} --saved-model {out}",
}
OVERWRITES = {
    "vocab": "--input {tsv} {link}.model --output {good}.model",
    "prepare": "--tsv {prepared}/valid.jsonl --valid-tsv {tsv} --output {prepared}",
    "translate": "--model {model} --input {good} --output {good}",
    "translate prefix": "--model {model} --input {good} --prefix {hard} --output {short}",
    "translate link": "--model {model} --input {link} --output {good}",
    "translate hard link": "--model {model} --input {hard} --output {short}",
    "translate model": "--model {model} --input {good} --output {model}/config.json",
    "parse": "--model {model} --input {good} --output {link}",
    "evaluate": "--model {model} --source {good} --reference {tsv} --output {good}",
    "evaluate reference": "--model {model} --source {good} --reference {tsv} {hard}"
    " --output {short}",
    "evaluate json": "--hypothesis {short} --reference {tsv} --json {hard}",
    "evaluate both": "--model {model} --source {good} --reference {tsv} --output {out}"
    " --json {folder}/../output",
    "evaluate table": "--task parsing --hypothesis {short} --reference {tsv} --table {hard}",
    "score": "--model {model} --source {good} --target {tsv} --output {tsv}",
    "score model": "--model {model} --source {good} --target {good}"
    " --output {model}/tokenizer.model",
    "average": "--output {model}/model.weights.h5 {model}/model.weights.h5",
}
WRONG_MODEL = {
    "translate": "--model {model} --input {good} --output {out}",
    "evaluate": "--model {model} --source {good} --reference {good}",
    "score": "--model {model} --source {good} --target {good} --output {out}",
    "export": "--model {model} --output {out}",
    "average": "--model {model} --last 2",
}
WRONG_VALUES = {
    "train preset": ("--preset huge --tsv {tsv} --valid-tsv {tsv} --output {out}", "'huge'"),
    "train nothing": ("--output {out}", "--source and --target, from --tsv, or from --dataset"),
    "train both": ("--tsv {tsv} --source {good} --output {out}", "Received: --source, --tsv"),
    "train half": ("--source {good} --output {out}", "also needs --target and --valid-source"),
    "train output": ("--tsv {tsv} --valid-tsv {tsv}", "--output DIR is required"),
    "train dataset": (
        "--dataset no_such_translation --source-language en --target-language de --output {out}",
        "'no_such_translation'",
    ),
    "train steps": ("--max-steps 0", "--max-steps: expected a whole number of at least 1"),
    "train rate": ("--dropout 1", "--dropout: expected a number from 0 to below 1"),
    "train seed": ("--seed 4294967296", "--seed: expected a whole number from 0 to 4294967295"),
    "train flag": ("--droput 0.1", "unrecognized arguments: --droput"),
    "train vocabulary": (
        "--tsv {tsv} --valid-tsv {tsv} --vocabulary {tsv} --output {out}",
        "A vocabulary is a .model or .txt file",
    ),
    "translate beam": ("--model {model} --beam-size 0", "expected a whole number of at least 1"),
    "translate n-best": ("--model {model} --input {good} --beam-size 2 --n-best 3", "--n-best"),
    "translate penalty": ("--model {model} --length-penalty -1", "expected a number of at least 0"),
    "translate model": ("--input {good}", "required: --model"),
    "evaluate beam": ("--model {model} --reference {good} --beam-size 0", "at least 1"),
    "evaluate source": ("--model {model} --reference {good}", "--model needs --source"),
    "evaluate both": ("--hypothesis {good} --source {good} --reference {good}", "--source goes"),
    "evaluate nothing": ("--hypothesis {good}", "--reference FILE or from --dataset NAME"),
    "evaluate trees": ("--task parsing --hypothesis {good}", "of gold trees. Received: 0 files"),
    "evaluate split": ("--hypothesis {good} --reference {good} --split test", "with --dataset"),
    "evaluate languages": ("--hypothesis {good} --dataset a/b", "needs --source-language"),
    "evaluate dataset": (
        "--model {model} --source {good} --dataset a/b --source-language en --target-language de",
        "takes the place of --source",
    ),
    "evaluate constraint": (
        "--hypothesis {good} --reference {good} --suppress-unknown",
        "--suppress-unknown goes with",
    ),
    "evaluate patience": (
        "--hypothesis {good} --reference {good} --patience 1",
        "--patience goes with --model",
    ),
    "evaluate long": (
        "--hypothesis {good} --reference {good} --long-lines split",
        "--long-lines goes with",
    ),
    "score long": (
        "--model {model} --source {good} --target {good} --long-lines split",
        "--long-lines: invalid choice: 'split'",
    ),
    "evaluate tokenize": ("--tokenize none-such", "invalid choice: 'none-such'"),
    "score batch": ("--batch-size 0", "expected a whole number of at least 1"),
    "average last": ("--model {model} --last 0", "expected a whole number of at least 1"),
    "average nothing": ("--output {out}", "Give the checkpoints"),
    "average both": ("--model {model} --output {out} {good}", "not both"),
    "average too many": ("--model {model} --last 3", "keeps 0 checkpoints"),
    "average suffix": ("--output {out} {model}/model.weights.h5", ".weights.h5"),
    "export beam": ("--model {model} --output {out} --beam-size 0", "at least 1"),
    "vocab size": ("--input {good} --size 0 --output {out}.model", "at least 1"),
    "vocab too small": ("--input {good} --size 100 --output {out}.model", "100"),
    "vocab beyond 32 bits": (
        "--input {good} --size 2147483648 --output {out}.model",
        "must be a positive integer below 2**31. Received: --size 2147483648",
    ),
    "vocab suffix": ("--input {good} --output {out}.txt", "must end in .model"),
    "vocab type": ("--input {good} --type words --output {out}", "invalid choice: 'words'"),
    "quickstart minutes": ("--minutes 0", "expected a number above 0"),
}


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
    return {
        "prepared": tmp_path / "prepared",
        "link": tmp_path / "link",
        "hard": tmp_path / "hard",
        "model": model,
        "good": text("good.txt", GOOD),
        "tsv": text("good.tsv", [f"{line}\t{line}" for line in GOOD]),
        "short": tmp_path / "short.txt",
        "empty": text("empty.txt", []),
        "emptymodel": text("empty.model", []),
        "invalid": text("invalid.txt", b"a red\thouse\na b\xffd\xfe\tline\na\tboat\n"),
        "long": text("long.txt", [GOOD[0], "red house " * 30, GOOD[2]]),
        "missing": tmp_path / "no-such-file",
        "nowhere": tmp_path / "no-such-folder" / "output",
        "folder": tmp_path / "folder",
        "out": tmp_path / "output",
    }


@pytest.fixture
def fails(run, files, tmp_path):
    """Runs a command that must fail as the house rules say; returns its line."""

    def run_and_check(case, arguments, status=2):
        command = case.split()[0]
        before = snapshot(tmp_path)
        outcome = run(command, *arguments.format(**files).split())
        assert outcome.status == status
        lines = outcome.errors.splitlines()
        assert lines[-1].startswith(f"keras-transformer {command}: error: "), outcome.errors
        # `train` says what it chose before it goes on to what takes long.
        assert len(lines) == 1 or command == "train", outcome.errors
        assert sum(": error: " in line for line in lines) == 1, outcome.errors
        assert not outcome.output
        assert snapshot(tmp_path) == before
        print(f"{case:<20} {lines[-1]}")  # `pytest -rP` shows the table
        return lines[-1]

    return run_and_check


def snapshot(folder):
    """Every file below a folder with its content."""
    paths = (pathlib.Path(root) / name for root, _, names in os.walk(folder) for name in names)
    return {path: path.read_bytes() for path in paths}


def cases(table):
    return pytest.mark.parametrize("case", table)


@cases(MISSING)
def test_a_missing_file_is_named(fails, case):
    line = fails(case, MISSING[case])
    assert "no-such-file" in line and "not found" in line.lower()


@cases(DIFFERENT_LENGTHS)
def test_files_of_different_lengths_are_named_with_their_lengths(fails, case):
    line = fails(case, DIFFERENT_LENGTHS[case])
    assert "good.txt" in line and "short.txt" in line
    assert " 3" in line and " 2" in line


@cases(EMPTY)
def test_an_empty_file_is_named(fails, case):
    line = fails(case, EMPTY[case])
    assert "empty." in line


@cases(INVALID_UTF8)
def test_invalid_utf8_is_named_with_file_and_line(fails, case):
    line = fails(case, INVALID_UTF8[case])
    assert "invalid.txt" in line
    assert "line 2" in line or case == "train config"


@cases(OVER_LONG_LINE)
def test_a_line_longer_than_the_model_reads_is_not_cut_silently(fails, case):
    line = fails(case, OVER_LONG_LINE[case])
    assert "long.txt" in line and "line 2" in line and "39" in line


@pytest.mark.slow
def test_an_over_long_line_is_cut_when_that_is_asked_for(run, files, saved_model_directory):
    outcome = run("translate", "--model", saved_model_directory, "--input", files["long"],
                  "--long-lines", "truncate")  # fmt: skip
    assert outcome.status == 0
    assert len(outcome.output.splitlines()) == 3


@pytest.mark.slow
def test_a_training_pair_that_is_too_long_is_left_out_and_counted(run, files, tmp_path):
    (tmp_path / "long.tsv").write_text(
        "".join(f"{line}\t{line}\n" for line in [*GOOD, "red house " * 30])
    )
    outcome = run("train", "--tsv", tmp_path / "long.tsv", "--valid-tsv", files["tsv"],
                  "--vocabulary-type", "subword", "--max-length", 20, "--preset", "tiny",
                  "--num-encoder-layers", 1, "--num-decoder-layers", 1, "--d-model", 8,
                  "--intermediate-dim", 8, "--num-heads", 2, "--tokens-per-batch", 64,
                  "--max-steps", 1, "--bleu-every", 0, "--output", files["out"])  # fmt: skip
    assert outcome.status == 0, outcome.errors
    assert "warning: 1 of 4 pairs are longer than 20 tokens and are left out" in outcome.errors


def test_an_over_long_target_is_named_with_its_line_and_never_cut(run, files, text, tmp_path):
    """The line counts from the file's start, also beyond the first 1,024 lines."""
    directory = tmp_path / "learned"
    model = tiny_model(position="learned", max_length=40)
    Translator(model, tiny_tokenizer(), extra_length=12).save(directory)
    source = text("many.txt", ["a red house"] * 1030)
    target = text("target.txt", ["a red house"] * 1028 + ["red house " * 30, "a dog"])
    for options in ([], ["--long-lines", "truncate"]):
        outcome = run("score", "--model", directory, "--source", source, "--target", target,
                      *options)  # fmt: skip
        assert outcome.status == 2
        assert not outcome.output
        assert "target.txt', line 1029: " in outcome.errors and "39" in outcome.errors


@cases(PIPES)
def test_a_pipe_that_would_be_read_twice_is_refused(run, files, tmp_path, case):
    files["pipe"] = tmp_path / "pipe.txt"
    os.mkfifo(files["pipe"])
    outcome = run(case.split()[0], *PIPES[case].format(**files).split())
    assert outcome.status == 2
    assert outcome.errors.count("\n") == 1
    assert "pipe.txt' is a pipe; it is read more than once: give a regular file" in outcome.errors


@cases(UNWRITABLE)
def test_an_output_that_cannot_be_written_is_named_before_any_work(fails, case):
    line = fails(case, UNWRITABLE[case])
    assert any(name in line for name in ("no-such-folder", "folder", "good.txt"))


@cases(OVERWRITES)
def test_an_output_that_is_read_or_written_besides_is_refused(fails, case):
    line = fails(case, OVERWRITES[case])
    assert "also reads or writes" in line or "would replace" in line


def test_standard_streams_that_are_files_are_no_exception(files):
    """`translate < text >> text` would read what it writes, for ever."""
    command = [sys.executable, "-m", "keras_transformer.cli", "translate"]
    before = files["good"].read_bytes()
    with open(files["good"]) as source, open(files["good"], "a") as output:
        done = subprocess.run(
            [*command, "--model", files["model"]],
            stdin=source, stdout=output, stderr=subprocess.PIPE,
        )  # fmt: skip
    assert done.returncode == 2 and b"also reads or writes" in done.stderr
    assert files["good"].read_bytes() == before


@cases(WRONG_MODEL)
@pytest.mark.parametrize(
    "damage", ["no folder", "no config", "cut config", "no weights", "cut weights", "no tokenizer",
               "cut tokenizer"]
)  # fmt: skip
def test_a_damaged_model_directory_is_named_with_the_file(fails, model, case, damage):
    if case == "average" and damage not in ("no folder", "no config", "cut config"):
        pytest.skip("average reads checkpoints, not the weights and the tokenizer")
    name = {"config": "config.json", "weights": "model.weights.h5", "tokenizer": "tokenizer.model"}
    kind, what = damage.split()
    if what == "folder":
        model.rename(model.with_name("gone"))
    elif kind == "no":
        (model / name[what]).unlink()
    else:
        content = (model / name[what]).read_bytes()
        (model / name[what]).write_bytes(content[: len(content) // 2])
    line = fails(case, WRONG_MODEL[case])
    assert name.get(what, "model") in line


def test_a_tokenizer_that_is_not_installed_is_named_before_anything_is_translated(
    fails, monkeypatch
):
    monkeypatch.setitem(sys.modules, "MeCab", None)
    monkeypatch.delitem(sys.modules, "sacrebleu.tokenizers.tokenizer_ja_mecab", raising=False)
    monkeypatch.setattr(Translator, "load", None)
    line = fails(
        "evaluate", "--model {model} --source {good} --reference {good} --tokenize ja-mecab"
    )
    assert "sacrebleu[ja]" in line and "--tokenize" in line and "ja-mecab" in line


@cases(WRONG_VALUES)
def test_a_wrong_value_is_named_with_what_is_allowed(fails, case):
    arguments, part = WRONG_VALUES[case]
    assert part in fails(case, arguments)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32"])
@pytest.mark.parametrize("command", ["vocab --size 300 --output v.model --input {}", "translate"])
def test_other_encodings_are_named(run, text, model, monkeypatch, encoding, command):
    """With and without a byte order mark, from files and from standard input."""
    path = text("other.txt", "A red house.\nA dog.\n".encode(encoding))
    monkeypatch.chdir(path.parent)
    words = command.format(path).split()
    if command == "translate":
        words += ["--model", model]
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes())))
    outcome = run(*words)
    name = "UTF-32" if encoding == "utf-32" else "UTF-16"
    assert outcome.status == 2 and outcome.errors.count("\n") == 1, outcome.errors
    assert f"iconv -f {name} -t UTF-8" in outcome.errors
    assert outcome.errors.endswith(f"Received: {name}\n")


@pytest.mark.parametrize(
    "command, option",
    [
        ("vocab --output v.model --input t.txt", "--size"),
        (
            "prepare --output new --source t.txt --target t.txt --valid-source t.txt "
            "--valid-target t.txt",
            "--vocab-size",
        ),
    ],
)
def test_options_are_named_as_they_were_given(run, text, monkeypatch, command, option):
    monkeypatch.chdir(text("t.txt", ["a b c", "d e f"]).parent)
    outcome = run(*command.split(), option, "90")
    assert outcome.status == 2
    error = outcome.errors.splitlines()[-1]
    assert f"{option} 90" in error and "vocab_size" not in error


def test_files_of_an_option_that_is_given_twice_are_all_read(run, text, tmp_path):
    first, second = text("first.txt", ["a b"]), text("second.txt", ["c d"])
    for once in ([first, second], [first, "--input", second]):
        outcome = run(
            "vocab", "--type", "subword", "--output", tmp_path / "v.txt", "--input", *once
        )
        assert outcome.status == 0, outcome.errors
        assert {"a", "b", "c", "d"} <= set((tmp_path / "v.txt").read_text().split())
    both = [
        run("evaluate", "--hypothesis", first, "--reference", second, *again, first).output
        for again in ([], ["--reference"])
    ]
    assert both[0] == both[1] and "nrefs:2" in both[0]
