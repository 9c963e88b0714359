"""`ParsingCommands`: what the command line asks about parsing."""

import argparse
import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from keras_transformer.cli.arguments import add_options
from keras_transformer.cli.task_commands import Corpora, Experiment, TaskCommands
from keras_transformer.settings.setting import COUNT, SWITCH, FrozenSettings, setting
from keras_transformer.settings.training_settings import TrainingSettings

_trees = functools.partial(setting, table="parsing")


@dataclasses.dataclass(frozen=True)
class TreeSettings(FrozenSettings):
    """The trees of a training, and their form.

    Args:
        {settings}
    """

    trees: str | None = _trees(
        None,
        "training trees in brackets, in the style of the Penn Treebank, .gz too",
        metavar="FILE",
    )
    valid_trees: str | None = _trees(
        None, "trees to choose and watch the model by; never the test set", metavar="FILE"
    )
    limit_trees: int | None = _trees(
        None,
        "train on N of the trees, drawn at random; a larger N includes the trees of a smaller one",
        COUNT,
        unset="all",
    )
    emit_words: bool = _trees(False, "the model writes the words in trees")
    emit_tags: bool = _trees(False, "the model writes the tags of words in trees")
    emit_numbers: bool | None = _trees(
        None,
        "the model writes a number for each word in trees; without words, tags and numbers it "
        "writes XX for each, as in the paper",
        SWITCH,
        unset="true, unless it writes words or tags",
    )
    unlabelled_closing: bool = _trees(False, "the model writes closing brackets without labels")


UNCONSTRAINED = {
    "--unconstrained": "search among all sequences of symbols, and repair those that are not trees"
}


# Section 6.3 of the paper. The trees of the Wall Street Journal are not free: --trees names
# sections 2 to 21 and --valid-trees section 22.
def _experiment(name: str, trees: str, preset: str, vocab_size: int) -> Experiment:
    values = {
        "task": "parsing",
        "preset": preset,
        "vocab_size": vocab_size,
        "emit_numbers": False,
        "vocabulary_type": "bpe",
        "tokens_per_batch": 25_000,
        "beam_size": 21,
        "length_penalty": 0.3,
        "select_best": False,
        "max_steps": 100_000,
        "average_checkpoints": 5,
        "checkpoint_every": 1_500,
        "evaluate_every": 3_000,
    }
    return Experiment(name, f"parser of {trees}", {}, values)


# Number of labels in opening and closing brackets, as in treebanks of English.
_NUM_SYMBOLS = 64


class ParsingCommands(TaskCommands):
    """The commands, options and data of parsing."""

    name, learns_from = "parsing", "trees"
    missing_data = "--task parsing needs --trees FILE and --valid-trees FILE."
    modules = ("keras_transformer.parsing.cli.parse",)
    settings = TreeSettings
    own_settings = ("f1_every", "f1_beam_size", "f1_trees")
    tables = {"parsing": "trees, for --task parsing"}
    defaults = {"preset": "parsing_small", "shared_vocabulary": False}
    experiments = (
        _experiment("wsj-parsing", "WSJ trees", "parsing", 16_000),
        _experiment(
            "wsj-parsing-semi-supervised", "WSJ and parsed trees", "parsing_semi_supervised", 32_000
        ),
    )
    data_kinds = {"trees": ("trees", "valid_trees")}
    evaluate_options = ("--parameters", "--table", "--unconstrained")
    model_options = ("--unconstrained",)
    evaluate_inputs = ("parameters",)
    evaluate_outputs = ("table",)

    def open_corpora(self, kind: str, values: dict[str, Any]) -> Corpora:
        from keras_transformer.parsing.linearization import Linearization
        from keras_transformer.parsing.treebank import TreebankCorpus

        linearization = Linearization(**_linearization(values))
        corpora = (
            TreebankCorpus(values["trees"], linearization, limit=values["limit_trees"]),
            TreebankCorpus(values["valid_trees"], linearization),
        )
        for corpus in corpora:
            len(corpus)  # reads all trees, and raises if one is broken
        return Corpora(*corpora)

    def describe_data(self, values: Mapping[str, Any]) -> str:
        return values["trees"] or ""

    def training_fields(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {"linearization": _linearization(values)}

    def plan_vocabulary(
        self, settings: TrainingSettings, size: int, vocabulary: Any
    ) -> tuple[int | None, str]:
        from keras_transformer.parsing.linearization import NUMBERS

        if settings.linearization["words"]:
            return size, "for the words, as many for the trees"
        num_symbols = _NUM_SYMBOLS + len(NUMBERS) * settings.linearization["numbers"]
        return num_symbols, f"for the words, about {num_symbols} symbols for the trees"

    def add_evaluate_options(self, parser: argparse.ArgumentParser) -> None:
        group = parser.add_argument_group("parsing")
        options = {
            "--parameters NAME": "EVALB's parameters: collins (COLLINS.prm), new (new.prm), or a "
            "parameter file (default: collins)",
            "--table FILE": "file for EVALB's table, with a line for each sentence",
            **UNCONSTRAINED,
        }
        add_options(group, options)

    def evaluate(self, arguments: argparse.Namespace) -> dict[str, Any]:
        from keras_transformer.parsing.cli.evaluate import evaluate_parsing

        return evaluate_parsing(arguments)


def _linearization(values: Mapping[str, Any]) -> dict[str, Any]:
    words, tags, numbers = (values[f"emit_{part}"] for part in ("words", "tags", "numbers"))
    return {
        "words": words,
        "tags": tags,
        "numbers": not (words or tags) if numbers is None else numbers,
        "labelled_closing": not values["unlabelled_closing"],
    }
