"""Settings of `train` and `prepare` that nobody made, chosen by the size of the corpus."""

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
# Largest number of training pairs, and the settings for that many, in the order of `_NAMES`.
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
    "preset": "a model of a size that this many pairs can fill",
    "num_encoder_layers": "few learn faster, and many more from many pairs",
    "num_decoder_layers": "likewise",
    "dropout": "the fewer pairs, the more is needed against learning them by heart",
    "vocab_size": "few enough for each subword to be seen often",
    "tokens_per_batch": "small enough for many steps an epoch",
    "warmup_steps": "a small part of the steps",
    "max_steps": "enough at this size; --patience may end it sooner",
    "evaluate_every": "often enough to watch, and less work than training",
    "checkpoint_every": "far enough apart for their average to be worth it",
    "patience": "stop after this many validations without gain",
}
_CHARACTER_PAIRS = 100_000
_RESERVED_PIECES = 260  # 4 special ids and 256 bytes


def choose_settings(
    values: Mapping[str, Any],
    corpus: Iterable[tuple[str, str]] | None,
    say: Callable[[str], object],
) -> dict[str, Any]:
    """Returns the settings with those that are `None` chosen by the number of training pairs.

    Nothing is chosen beside a preset that is named, and no size of a vocabulary that is given or of
    text in subwords.

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
        say(f"The training pairs are not known; as for {_ASSUMED_PAIRS:,} of them:")
    else:
        if "vocab_size" in chosen:
            chosen["vocab_size"] = choose_vocab_size(corpus)
        say(f"{len(corpus):,} training pairs; settings that were not made are chosen by that:")
    for name, value in chosen.items():
        say(f"  --{name.replace('_', '-')} {value}: {_REASONS[name]}")
    return {**values, **chosen}


def keep_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings with those that are `None` as a training in the output has them.

    Another release may choose otherwise; a training that is resumed keeps what was chosen.

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
