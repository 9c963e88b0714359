"""Settings that nobody made: chosen by the number of pairs, said with the reason, and kept."""

import json
import os
import pathlib
import tomllib

import pytest

from keras_transformer.cli import corpus_defaults
from keras_transformer.cli.application import build_parser
from keras_transformer.cli.corpus_defaults import choose_settings, choose_vocab_size
from keras_transformer.cli.settings import resolve
from keras_transformer.data import PairsCorpus
from keras_transformer.errors import UserError
from keras_transformer.models import TransformerConfig, get_preset
from keras_transformer.settings.transformer_config import count_parameters

CHOSEN = corpus_defaults.CHOSEN.keys()
ADAPTED = {"tokens_per_batch", "max_steps", "evaluate_every", "checkpoint_every", "patience"}
TINY = ["--num-encoder-layers", 1, "--num-decoder-layers", 1, "--d-model", 8,
        "--intermediate-dim", 8, "--num-heads", 2]  # fmt: skip


class Pairs:
    """A corpus of which only the size matters."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __iter__(self):
        return iter([("a red house", "ein rotes Haus")])


def choose(size, options="", lines=None):
    values = resolve(build_parser("train").parse_args(["train", *options.split()]))
    corpus = None if size is None else Pairs(size)
    chosen = choose_settings(values, corpus, [].append if lines is None else lines.append)
    return {name: value for name, value in chosen.items() if values[name] != value}


@pytest.mark.parametrize("size", [1, 20, 2_000, 10_000, 29_000, 200_000, 4_500_000, None])
def test_all_of_them_are_chosen_and_each_is_said_with_a_reason(size):
    lines = []
    chosen = choose(size, lines=lines)
    assert chosen.keys() == CHOSEN
    assert (f"{size:,} training pairs" if size else "100,000") in lines[0]
    assert len(lines) == 1 + len(CHOSEN)
    said = dict(line.split(": ") for line in lines[1:])
    assert said.keys() == {f"  --{name.replace('_', '-')} {chosen[name]}" for name in CHOSEN}
    assert all(len(reason) > 7 for reason in said.values())
    get_preset(chosen["preset"])
    assert chosen["checkpoint_every"] <= chosen["evaluate_every"] <= chosen["max_steps"]
    assert chosen["warmup_steps"] < chosen["max_steps"]


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ("--preset tiny", set()),
        ("--experiment wmt14-en-de-base", set()),
        ("--task parsing", set()),
        ("--dropout 0.25 --max-steps 7", CHOSEN - {"dropout", "max_steps"}),
        ("--start-from model", ADAPTED),
        ("--start-from model --max-steps 7", ADAPTED - {"max_steps"}),
        ("--start-from model --preset tiny", set()),
        ("--vocabulary v.model", CHOSEN - {"vocab_size"}),
        ("--prepared folder", CHOSEN - {"vocab_size"}),
        ("--vocabulary-type subword", CHOSEN - {"vocab_size"}),
        ("--vocabulary-type subword --vocab-size 9", CHOSEN - {"vocab_size"}),
    ],
)
def test_what_was_set_stays_and_a_named_preset_or_recipe_keeps_its_own(options, names):
    lines = []
    assert choose(2_000, options, lines).keys() == names
    assert bool(lines) == bool(names)


def test_a_script_of_many_characters_gets_a_vocabulary_that_holds_them():
    lines = [chr(0x4E00 + number) for number in range(2_000)]
    assert choose_vocab_size(PairsCorpus([(line, "a") for line in lines])) >= 260 + 2_001


@pytest.fixture
def files(text):
    """Twenty pairs, as options of `train`."""
    lines = [f"{color} {thing}" for color in ("red", "blue") for thing in "abcdefghij"]
    path = text("pairs.tsv", [f"{line}\t{line}" for line in lines])
    return ["--tsv", path, "--valid-tsv", path]


@pytest.mark.tensorflow_only("other backends have one stream")
@pytest.mark.parametrize(
    "options, streams", [([], 2), (["--streams", 1], 1), (["--jit-compile"], 1)]
)
def test_a_cpu_trains_in_two_streams(options, streams, refuse, files, tmp_path, monkeypatch):
    from keras_transformer import training

    def train(output, train_corpus, valid_corpus, settings, **others):
        raise UserError(f"{settings.streams} streams")

    monkeypatch.setattr(training, "train", train)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8), raising=False)
    line = refuse("train", *files, "--output", tmp_path / "out", *options)
    assert f"{streams} streams" in line


@pytest.mark.slow
def test_the_printed_file_and_the_training_have_what_was_chosen(
    succeed, files, tmp_path, monkeypatch
):
    """Twenty pairs train, with a smaller vocabulary; the same command goes on."""
    printed = tomllib.loads(succeed("train", "--print-config", *files).output)
    chosen = choose(20)
    for name in CHOSEN - {"vocab_size"}:
        assert chosen[name] in [table.get(name) for table in printed.values()], name
    options = [*TINY, "--bleu-every", 0, "--output", tmp_path / "out", "--max-steps"]
    outcome = succeed("train", *files, *options, 1)
    assert "20 training pairs" in outcome.errors and "too small for a vocabulary" in outcome.errors
    settings = json.loads((tmp_path / "out" / "training.json").read_text())["settings"]
    assert (settings["preset"], settings["patience"]) == (chosen["preset"], chosen["patience"])
    assert settings["recipe"]["tokens_per_batch"] == chosen["tokens_per_batch"]
    other = (float("inf"), ("tiny", 1, 1, 0.1, 900, 99, 9, 9, 9, 9, 9))
    monkeypatch.setattr(corpus_defaults, "_BY_PAIRS", (other,))  # As in another release.
    assert "Resuming after step 1" in succeed("train", *files, *options, 2).errors


def test_a_plan_counts_the_pairs(succeed, unmeasured, files):
    output = succeed("train", "--plan", *files, *TINY).output
    chosen = choose(20)
    assert f"{chosen['max_steps']:,}" in output and f"{chosen['vocab_size']:,} bpe" in output


def test_a_plan_of_an_adaptation_has_the_vocabulary_of_the_model(succeed, unmeasured, model):
    config = json.loads((model / "config.json").read_text())["model"]
    output = succeed("train", "--plan", "--start-from", model).output
    assert f"vocabulary          {config['vocab_size']} bpe pieces" in output
    assert f"{count_parameters(TransformerConfig.from_dict(config)):,}" in output


def test_the_docs_have_the_table():
    docs = (pathlib.Path(__file__).resolve().parents[2] / "docs/training.md").read_text("utf-8")
    table = docs[docs.index("| pairs | preset |") :].split("\n\n")[0].splitlines()[2:]
    for line, size in zip(table, (5_000, 20_000, 60_000, 500_000, 500_001), strict=True):
        chosen = choose(size)
        cells = [cell.strip(" `").replace(",", "") for cell in line.strip("|").split("|")]
        assert cells[0] == (f"up to {size}" if size <= 500_000 else "more")
        assert cells[1:] == [str(chosen[name]) for name in CHOSEN]
