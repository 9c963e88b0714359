"""Settings that nobody made: chosen by the number of pairs, said with the reason, and kept."""

import pytest

from keras_transformer.cli import corpus_defaults
from keras_transformer.cli.application import build_parser
from keras_transformer.cli.corpus_defaults import choose_settings, choose_vocab_size, keep_settings
from keras_transformer.cli.settings import resolve
from keras_transformer.data import MixedCorpus, PairsCorpus
from keras_transformer.layouts import CHECKPOINT_FOLDER
from keras_transformer.models import get_preset
from keras_transformer.training import TrainingSettings

CHOSEN = corpus_defaults.CHOSEN.keys()
ADAPTED = {"tokens_per_batch", "max_steps", "evaluate_every", "checkpoint_every", "patience"}


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


@pytest.mark.parametrize("size", [1, 29_000, 4_500_000, None])
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
        ("--task parsing", set()),
        ("--dropout 0.25 --max-steps 7", CHOSEN - {"dropout", "max_steps"}),
        ("--start-from model --max-steps 7", ADAPTED - {"max_steps"}),
        ("--vocabulary v.model", CHOSEN - {"vocab_size"}),
        ("--flash-attention", CHOSEN - {"attention_dropout"}),
        ("--vocabulary-type subword", CHOSEN - {"vocab_size"}),
    ],
)
def test_what_was_set_stays_and_a_named_preset_or_recipe_keeps_its_own(options, names):
    lines = []
    assert choose(2_000, options, lines).keys() == names
    assert bool(lines) == bool(names)


def test_a_script_of_many_characters_gets_a_vocabulary_that_holds_them():
    chinese = PairsCorpus([(chr(0x4E00 + number), "a") for number in range(5_000)])
    assert choose_vocab_size(chinese) >= 260 + 5_001
    large = PairsCorpus([("a", "b")] * 100_001)
    for corpora in ({"large": large, "small": chinese}, {"small": chinese, "large": large}):
        mixed = MixedCorpus(corpora, dict.fromkeys(corpora, 1))
        assert choose_vocab_size(mixed) >= 260 + 5_001


def test_a_training_that_goes_on_keeps_what_was_chosen(tmp_path):
    started = TrainingSettings("small", {"dropout": 0.3}, {"warmup_steps": 7}, patience=9)
    started.save(tmp_path, {})
    values = resolve(build_parser("train").parse_args(["train", "--output", str(tmp_path)]))
    assert keep_settings(values) == values  # It ended before its first checkpoint.
    add_checkpoint(tmp_path)
    kept = keep_settings(values)
    names = ("preset", "dropout", "warmup_steps", "patience")
    assert [kept[name] for name in names] == ["small", 0.3, 7, 9]


def add_checkpoint(folder):
    (folder / CHECKPOINT_FOLDER).mkdir()
    (folder / CHECKPOINT_FOLDER / "state.npz").touch()


def test_settings_are_printed_as_a_training_that_goes_on_keeps_them(tmp_path, succeed):
    TrainingSettings("small", {"dropout": 0.3}, vocab_size=777).save(tmp_path, {})
    add_checkpoint(tmp_path)
    printed = succeed("train", "--output", tmp_path, "--print-config").output
    assert "vocab_size = 777\n" in printed and "dropout = 0.3\n" in printed
