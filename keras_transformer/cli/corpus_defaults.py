"""Defaults of `train` and `prepare` that depend on the size of the corpus."""

import json
import pathlib
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any

_NAMES = (
    "preset",
    "num_encoder_layers",
    "num_decoder_layers",
    "dropout",
    "vocab_size",
    "tokens_per_batch",
    "warmup_steps",
    "max_steps",
    "evaluate_every",
    "checkpoint_every",
    "patience",
)
# Largest number of training pairs, and its defaults in the order of `_NAMES`.
_BY_PAIRS = (
    (5_000, ("small", 2, 2, 0.3, 1_000, 1_024, 400, 4_000, 200, 100, 5)),
    (20_000, ("small", 2, 2, 0.2, 2_000, 1_024, 400, 12_000, 400, 100, 8)),
    (60_000, ("small", 2, 2, 0.2, 4_000, 1_024, 400, 20_000, 500, 100, 10)),
    (500_000, ("small", 3, 3, 0.2, 8_000, 4_096, 1_000, 40_000, 1_000, 500, 10)),
    (float("inf"), ("base", 6, 6, 0.1, 32_000, 25_000, 4_000, 100_000, 3_000, 1_500, 10)),
)
# Without a corpus, e.g. for a plan or a settings file.
_ASSUMED_PAIRS = 100_000
_REASONS = {
    "preset": "a model size that suits this number of pairs",
    "num_encoder_layers": "fewer layers learn faster from little text",
    "num_decoder_layers": "fewer layers learn faster from little text",
    "dropout": "less text needs more dropout against overfitting",
    "vocab_size": "small enough that each subword occurs often",
    "tokens_per_batch": "small enough for many steps in an epoch",
    "warmup_steps": "a small share of the steps",
    "max_steps": "enough for this size; --patience may end the training sooner",
    "evaluate_every": "validation takes less time than training",
    "checkpoint_every": "far enough apart that averaging the checkpoints helps",
    "patience": "stop after this many validations without improvement",
}
_CHARACTER_PAIRS = 100_000
_RESERVED_PIECES = 260  # 4 special ids and 256 bytes


def choose_settings(
    values: Mapping[str, Any],
    corpus: Iterable[tuple[str, str]] | None,
    say: Callable[[str], object],
) -> dict[str, Any]:
    """Returns the settings with defaults for this number of training pairs in place of `None`.

    A named preset keeps its own defaults. A given vocabulary, or text in subwords, keeps its size.

    Args:
        values: settings by name; those of parsing stay as they are.
        corpus: the training pairs, with a length; None if they are not known.
        say: called with a line for each choice and its reason.

    Returns:
        Settings by name.
    """
    if values["task"] == "parsing" or values["preset"]:
        return dict(values)
    row = _row(corpus)
    chosen = {name: row[name] for name in _names(values) if values[name] is None}
    if corpus is None:
        say(f"The number of training pairs is not known. Defaults for {_ASSUMED_PAIRS:,} pairs:")
    else:
        if "vocab_size" in chosen:
            chosen["vocab_size"] = choose_vocab_size(corpus)
        say(f"Defaults for {len(corpus):,} training pairs:")
    for name, value in chosen.items():
        say(f"  --{name.replace('_', '-')} {value}: {_REASONS[name]}")
    return {**values, **chosen}


def keep_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings with those of the training in the output folder in place of `None`.

    A training that is resumed keeps its settings, even if another release has other defaults.

    Args:
        values: settings by name.

    Returns:
        Settings by name; as they are if a preset is named, or there is no training.
    """
    try:
        text = pathlib.Path(values["output"], "training.json").read_text(encoding="utf-8")
        saved = json.loads(text)["settings"]
        saved = {**saved, **saved["model"], **saved["recipe"]}
    except (OSError, ValueError, LookupError, TypeError):
        return dict(values)  # `train` says what is damaged.
    names = () if values["preset"] else _names(values)
    kept = {name: saved.get(name) for name in names if values[name] is None}
    return {**values, **kept}


def choose_vocab_size(corpus: Iterable[tuple[str, str]]) -> int:
    """Returns the number of subwords for a corpus.

    Args:
        corpus: the training pairs, with a length.

    Returns:
        The number that its size asks for, or more for a script of many characters, since each is a
        piece of its own.
    """
    characters = set()
    for source, target in islice(corpus, _CHARACTER_PAIRS):
        characters.update(source, target)
    return max(_row(corpus)["vocab_size"], _RESERVED_PIECES + 2 * len(characters))


def _names(values) -> list[str]:
    has_vocabulary = values["vocabulary"] or values["prepared"]
    if has_vocabulary or values["vocabulary_type"] == "subword":
        return [name for name in _NAMES if name != "vocab_size"]
    return list(_NAMES)


def _row(corpus) -> dict[str, Any]:
    num_pairs = _ASSUMED_PAIRS if corpus is None else len(corpus)
    return dict(zip(_NAMES, next(row for most, row in _BY_PAIRS if num_pairs <= most), strict=True))
