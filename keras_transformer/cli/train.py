"""`keras-transformer train`: from sentence pairs to a model directory, resumed if it exists."""

import argparse
import dataclasses
import sys
from collections.abc import Mapping
from typing import Any

from keras_transformer.cli.arguments import add_command
from keras_transformer.cli.backend import load_backend
from keras_transformer.cli.progress import Progress, say
from keras_transformer.cli.train_config import render_config, resolve
from keras_transformer.cli.train_settings import GROUPS, SETTINGS
from keras_transformer.cli.vocab import DEFAULT_VOCAB_SIZE, load_vocabulary
from keras_transformer.errors import UserError

_DESCRIPTION = """
Trains a Transformer on sentence pairs and writes a model directory: config, weights, tokenizer,
recipe, checkpoints and history. The weights are the average of the last N checkpoints, or a better
single one by BLEU on the validation text. Stopped at any moment and started again with the same
--output, it goes on from the last checkpoint; --max-steps and --max-minutes may then be raised.

The pairs come from two text files (--source, --target), from one TSV file (--tsv), or from
tensorflow-datasets (--dataset); each with its validation pairs. Settings can also be kept in a TOML
file (--config), which `--print-config` writes with a comment for each; options on the command line
win over it. A model and its recipe go by name (--preset): tiny for some 10,000 pairs, small for
some 100,000, base for millions.
"""

# The one that argparse makes lists fifty options.
_USAGE = """keras-transformer train --output DIR [--preset NAME] [options]
          --source FILE --target FILE --valid-source FILE --valid-target FILE
        | --tsv FILE --valid-tsv FILE
        | --dataset NAME --source-language CODE --target-language CODE
        | --config FILE"""

_EXAMPLE = """
keras-transformer train --source train.en --target train.de \\
    --valid-source valid.en --valid-target valid.de --preset tiny --output runs/en-de
keras-transformer train --dataset wmt14_translate/de-en --source-language en \\
    --target-language de --preset base --vocab-size 37000 --gpus 4 --mixed-precision \\
    --output runs/wmt14
keras-transformer train --print-config --preset tiny > settings.toml
"""


def add_parser(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    """Adds the parser of this command.

    Args:
        commands: what `parser.add_subparsers` returned.

    Returns:
        The parser.
    """
    parser = add_command(
        commands, "train", "train a model, or go on training it", _DESCRIPTION, _EXAMPLE
    )
    parser.usage = _USAGE
    config = parser.add_argument_group("settings in a file")
    config.add_argument("--config", metavar="FILE", help="TOML file with any of these settings")
    config.add_argument(
        "--print-config",
        action="store_true",
        help="print such a file, with every setting and a comment for each, and stop",
    )
    for heading, settings in GROUPS.values():
        group = parser.add_argument_group(heading)
        for setting in settings:
            setting.add_to(group)
    return parser


def run(arguments: argparse.Namespace) -> None:
    """Trains.

    Args:
        arguments: parsed arguments.
    """
    values = resolve(arguments)
    if arguments.print_config:
        load_backend()
        sys.stdout.write(render_config(values, _preset_values(values["preset"])))
        return
    if not values["output"]:
        raise UserError("--output DIR is required: where the model goes.")
    kind = _data_kind(values)
    # What can be wrong with files is found before TensorFlow is loaded.
    corpora = None if kind == "dataset" else _file_corpora(kind, values)
    vocabulary = load_vocabulary(values["vocabulary"]) if values["vocabulary"] else None
    load_backend()
    _check_preset(values["preset"])
    from keras_transformer.training import train

    train_corpus, valid_corpus = corpora or _dataset_corpora(values)
    try:
        with Progress("training", unit="steps") as progress:
            result = train(
                values["output"],
                train_corpus,
                valid_corpus,
                _training_settings(values),
                source_tokenizer=vocabulary,
                report=say,
                progress=progress.update,
            )
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            "interrupted; the same command goes on from the last checkpoint"
        ) from None
    say(
        f"wrote {values['output']}: {result.steps:,} steps, {result.epochs:.1f} epochs, "
        f"{result.minutes:.1f} minutes"
    )


def _training_settings(values: Mapping[str, Any]):
    from keras_transformer.models import TrainingRecipe, TransformerConfig
    from keras_transformer.training import TrainingSettings

    own = {field.name for field in dataclasses.fields(TrainingSettings)}
    model = {field.name for field in dataclasses.fields(TransformerConfig)} - {"vocab_size"}
    recipe = {field.name for field in dataclasses.fields(TrainingRecipe)} - own
    # The longest sentence is a matter of the recipe; the model's limit follows its positions.
    model -= recipe
    given = {name: value for name, value in values.items() if value is not None}
    kind = given["vocabulary_type"]
    return TrainingSettings(
        model={name: given[name] for name in given.keys() & model} | _learned_positions(given),
        recipe={name: given[name] for name in given.keys() & recipe},
        tokenizer=kind,
        vocab_size=given.get("vocab_size", None if kind == "subword" else DEFAULT_VOCAB_SIZE),
        **{name: given[name] for name in given.keys() & own - {"vocab_size"}},
    )


def _learned_positions(given: Mapping[str, Any]) -> dict[str, int]:
    """How many positions are learned, if they are: as many as the longest sentence needs."""
    from keras_transformer.models import get_preset

    _check_preset(given["preset"])
    preset = get_preset(given["preset"])
    position = given.get("position", preset.config.get("position"))
    if position != "learned" or not given.keys() & {"position", "max_length"}:
        return {}
    return {"max_length": given.get("max_length", preset.recipe.max_length)}


# What each kind of data needs.
_DATA_KINDS = {
    "source": ("source", "target", "valid_source", "valid_target"),
    "tsv": ("tsv", "valid_tsv"),
    "dataset": ("dataset", "source_language", "target_language"),
}


def _data_kind(values: Mapping[str, Any]) -> str:
    kinds = [kind for kind, names in _DATA_KINDS.items() if any(values[name] for name in names)]
    if len(kinds) != 1:
        raise UserError(
            "Sentence pairs come from --source and --target, from --tsv, or from --dataset. "
            f"Received: {' and '.join('--' + kind for kind in kinds) or 'none of them'}"
        )
    (kind,) = kinds
    missing = [SETTINGS[name].flag for name in _DATA_KINDS[kind] if not values[name]]
    if missing:
        raise UserError(f"--{kind} also needs {' and '.join(missing)}.")
    return kind


def _file_corpora(kind: str, values: Mapping[str, Any]) -> tuple:
    from keras_transformer.data import ParallelTextCorpus, TsvCorpus

    if kind == "tsv":
        corpora = TsvCorpus(values["tsv"]), TsvCorpus(values["valid_tsv"])
    else:
        corpora = (
            ParallelTextCorpus(values["source"], values["target"]),
            ParallelTextCorpus(values["valid_source"], values["valid_target"]),
        )
    for corpus in corpora:
        len(corpus)  # reads it once: finds lines that are no UTF-8, and files that do not match
    return corpora


def _dataset_corpora(values: Mapping[str, Any]) -> tuple:
    from keras_transformer.data import TfdsCorpus

    return tuple(
        TfdsCorpus(
            values["dataset"],
            values[split],
            values["source_language"],
            values["target_language"],
            data_dir=values["data_dir"],
        )
        for split in ("train_split", "valid_split")
    )


def _check_preset(name: str) -> None:
    from keras_transformer.models import list_presets

    if name not in list_presets():
        raise UserError(
            f"--preset must be one of {', '.join(sorted(list_presets()))}. Received: {name!r}"
        )


def _preset_values(name: str) -> dict[str, Any]:
    """What a preset gives to the settings that nobody set."""
    from keras_transformer.models import TransformerConfig, get_preset

    _check_preset(name)
    preset = get_preset(name)
    model = TransformerConfig(vocab_size=1, **preset.config).to_dict()
    return {**model, **preset.recipe.to_dict(), "vocab_size": DEFAULT_VOCAB_SIZE}
