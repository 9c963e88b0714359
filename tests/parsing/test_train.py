"""`train --task parsing`: settings, what goes with which task, plans, and a parser from files."""

import pytest

from keras_transformer.cli.application import build_parser
from keras_transformer.cli.settings import resolve, training_settings
from keras_transformer.parsing import Tree
from keras_transformer.parsing.parser import Parser
from keras_transformer.training import TrainingSettings
from tests.toy_treebank import write_toy_trees

TINY = ("--num-encoder-layers 1 --num-decoder-layers 1 --d-model 16 --intermediate-dim 16 "
        "--num-heads 2").split()  # fmt: skip


def parse(*arguments):
    return resolve(build_parser().parse_args(["train", "--task", "parsing", *arguments]))


@pytest.fixture
def files(tmp_path):
    train, valid = tmp_path / "train.trees", tmp_path / "dev.trees"
    return ["--trees", write_toy_trees(train, 40), "--valid-trees", write_toy_trees(valid, 6, 1)]


def test_every_setting_of_parsing_reaches_the_training():
    values = parse(
        *"--trees a --valid-trees b --emit-words --emit-tags --unlabelled-closing --f1-every 2 "
        "--f1-beam-size 3 --f1-trees 4 --preset parsing --vocab-size 16000".split()
    )
    assert training_settings(values) == TrainingSettings(
        preset="parsing", task="parsing", vocab_size=16_000, shared_vocabulary=False,
        task_settings={
            "f1_every": 2, "f1_beam_size": 3, "f1_trees": 4,
            "linearization": {"words": True, "tags": True, "numbers": False,
                              "labelled_closing": False},
        },
    )  # fmt: skip


@pytest.mark.parametrize("arguments, linearization", [
    ("", {"numbers": True}),
    ("--emit-words", {"words": True}),
    ("--emit-tags", {"tags": True}),
    ("--no-emit-numbers", {}),
])  # fmt: skip
def test_words_are_numbers_unless_they_are_something_else(arguments, linearization):
    settings = training_settings(parse(*arguments.split()))
    assert settings.preset == "parsing_small"
    expected = {"words": False, "tags": False, "numbers": False, "labelled_closing": True}
    assert settings.task_settings["linearization"] == expected | linearization


@pytest.mark.parametrize("arguments, message", [
    ("", "--task parsing needs --trees FILE and --valid-trees FILE"),
    ("--source {trees} {both}", "--source goes with --task translation"),
    ("--bleu-every 2 {both}", "--bleu-every goes with --task translation"),
    ("--experiment wmt14-en-de-base {both}", "wmt14-en-de-base is for --task translation"),
    ("--emit-words --emit-numbers {both}", "must not both be True"),
    ("--task translation {both}", "--trees goes with --task parsing"),
    ("--task translation --f1-trees 5 --tsv x --valid-tsv y", "--f1-trees goes with"),
    ("--limit-trees 0 {both}", "--limit-trees: expected a whole number of at least 1"),
    ("--trees {trees} --valid-trees {broken}", "broken.trees', line 2: the tree that begins"),
    ("--trees {empty} --valid-trees {trees}", "empty.trees' has no trees"),
])  # fmt: skip
def test_what_makes_no_sense_is_one_line(run, tmp_path, arguments, message):
    files = {"trees": write_toy_trees(tmp_path / "some.trees", 3), "missing": "no-such-file"}
    contents = {"broken": "(NP (NN a))\n(NP (NN b)\n", "words": "a dog\n", "empty": ""}
    for name, content in contents.items():
        files[name] = tmp_path / f"{name}.trees"
        files[name].write_text(content)
    files["both"] = f"--trees {files['trees']} --valid-trees {files['trees']}"
    output = tmp_path / "model"
    outcome = run("train", "--task", "parsing", "--output", output,
                  *arguments.format(**files).split())  # fmt: skip
    assert outcome.status == 2
    assert outcome.errors.count("\n") == 1 and message in outcome.errors, outcome.errors
    assert not outcome.output and not output.exists()


@pytest.mark.slow
def test_trees_from_files_become_a_parser(run, files, tmp_path):
    outcome = run(
        "train", "--task", "parsing", *files, "--vocabulary-type", "subword", "--limit-trees", 30,
        "--emit-tags", *TINY, "--tokens-per-batch", 512, "--beam-size", 2, "--max-steps", 2,
        "--output", tmp_path / "model",
    )  # fmt: skip
    assert outcome.status == 0, outcome.errors
    assert "30 training pairs" in outcome.errors and "F1 " in outcome.errors
    parser = Parser.load(tmp_path / "model")
    assert parser.linearization.tags and parser.search.beam_size == 2
    (tree,) = parser.parse(["the dog sees a cat ."])
    assert isinstance(tree, Tree) and tree.words()[1] == "dog"


@pytest.mark.parametrize("arguments, vocabulary, num_targets", [
    ("", "900 bpe pieces for the words, about 164 symbols for the trees", 164),
    ("--emit-tags", "900 bpe pieces for the words, about 64 symbols for the trees", 64),
    ("--emit-words", "900 bpe pieces for the words, as many for the trees", 900),
])  # fmt: skip
def test_a_plan_counts_words_and_trees(run, unmeasured, arguments, vocabulary, num_targets):
    outcome = run("train", "--task", "parsing", "--trees", "some.trees", "--plan", *TINY,
                  "--vocab-size", 900, *arguments.split())  # fmt: skip
    assert outcome.status == 0, outcome.errors
    lines = {line[:20].strip(): line[20:] for line in outcome.output.splitlines()}
    assert lines["data"] == "some.trees"
    assert lines["vocabulary"] == vocabulary
    # One encoder and one decoder block and two embeddings; pre-norm has two norms more.
    attention, feed_forward, norm = 4 * 16**2, 2 * 16 * 16 + 16 + 16, 2 * 16
    blocks = 3 * attention + 2 * feed_forward + 5 * norm + 2 * norm
    assert lines["parameters"] == f"{blocks + (900 + num_targets) * 16:,}"
