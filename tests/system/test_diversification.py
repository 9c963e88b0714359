"""`examples/diversification.sh`: which translations its student learns, and how they are split."""

import gzip
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).parents[2] / "examples/diversification.sh"
pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")

# In place of the command: it keeps its arguments, and has given translations.
COMMAND = """#!{python}
import pathlib, sys

with open("commands", "a") as commands:
    print(*sys.argv[1:], file=commands)
if sys.argv[1] == "translate":
    output = pathlib.Path(sys.argv[sys.argv.index("--output") + 1])
    output.write_text(pathlib.Path(f"given{{output.suffix}}").read_text())
"""
TRAINING_TEXT = {"en": "a red house\nred\n", "de": "ein ro@@ tes haus\nrot@@ e\n"}
# Number of the line, rank, score, translation, as `translate --n-best` writes them.
GIVEN = {
    "en": "1\t1\t-0.1\ta red house\n1\t2\t-0.2\tred\n2\t1\t-0.1\ta house\n2\t2\t-0.2\ta red\n",
    "de": "1\t1\t-0.1\tein haus\n1\t2\t-0.2\tein rotes haus ein\n1\t3\t-0.3\thaus\n"
    "2\t1\t-0.1\trothaus\n2\t2\t-0.2\trothaus rothaus\n",
}


@pytest.fixture
def run(tmp_path):
    """Returns a function that runs the script and gives its commands and its folder of text."""
    folders = [tmp_path / name for name in ("bin", "multi30k")]
    for folder in folders:
        folder.mkdir()
    command = folders[0] / "keras-transformer"
    command.write_text(COMMAND.format(python=sys.executable))
    command.chmod(0o755)
    for language, text in TRAINING_TEXT.items():
        (folders[1] / f"bpe10k.train.{language}.gz").write_bytes(gzip.compress(text.encode()))
        (tmp_path / f"given.{language}").write_text(GIVEN[language])

    def run_script(**settings):
        path = os.pathsep.join([str(folders[0]), str(pathlib.Path(sys.executable).parent)])
        path += os.pathsep + os.environ["PATH"]
        variables = {**os.environ, "KERAS_TRANSFORMER_DATA": str(tmp_path), "PATH": path}
        subprocess.run(["bash", SCRIPT], cwd=tmp_path, env=variables | settings, check=True)
        commands = (tmp_path / "commands").read_text().splitlines()
        return commands, tmp_path / "runs/diversification/text"

    return run_script


def corpora_of(command):
    words = command.split()
    return [words[place + 1] for place, word in enumerate(words) if word == "--corpus"]


def test_the_student_learns_the_best_and_the_nearest_translation_of_each_side(run):
    commands, text = run()
    assert (text / "best-1.de").read_text() == "ein haus\nrot@@ haus\n"
    # "rotes" is split as in the training text, and "rothaus", which is not there, by its subwords.
    assert (text / "nearest-1.de").read_text() == "ein ro@@ tes haus ein\nrot@@ haus\n"
    assert (text / "best-1.en").read_text() == "a red house\na house\n"
    assert (text / "nearest-1.en").read_text() == "a red house\na red\n"
    verbs = [command.split()[0] for command in commands]
    assert verbs == ["train", "translate"] * 2 + ["train", "evaluate"]
    folder = "runs/diversification/text"
    assert corpora_of(commands[4]) == [
        f"real=1:{folder}/train.en,{folder}/train.de",
        f"forward-best-1=1:{folder}/train.en,{folder}/best-1.de",
        f"back-best-1=1:{folder}/best-1.en,{folder}/train.de",
        f"forward-nearest-1=1:{folder}/train.en,{folder}/nearest-1.de",
        f"back-nearest-1=1:{folder}/nearest-1.en,{folder}/train.de",
    ]


def test_each_seed_has_its_teachers_and_a_student_of_its_own(run):
    commands, _ = run(SEEDS="1 2", ANSWERS="best", STUDENT_SEED="3")
    outputs = [command.split("--output ")[1].split()[0] for command in commands[:-1:2]]
    names = ["en-de-1", "de-en-1", "en-de-2", "de-en-2", "student-1-2-best-seed-3"]
    assert outputs == [f"runs/diversification/{name}" for name in names]
    seeds = [command.split("--seed ")[1].split()[0] for command in commands[:-1:2]]
    assert seeds == ["1", "1", "2", "2", "3"]
    assert [corpus.split("=")[0] for corpus in corpora_of(commands[8])] == [
        "real", "forward-best-1", "back-best-1", "forward-best-2", "back-best-2",
    ]  # fmt: skip
