"""Settings of `train` that nobody gave: they follow from the number of training pairs."""

import itertools
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

from keras_transformer.layouts import CHECKPOINT_FOLDER
from keras_transformer.settings.training_settings import read_settings_file

# Settings that depend on the number of training pairs, each with the reason for its value.
CHOSEN: dict[str, str] = {
    "preset": "small for little text, base for much",
    "num_encoder_layers": "fewer layers learn faster from little text",
    "num_decoder_layers": "fewer layers learn faster from little text",
    "dropout": "less text needs more dropout against overfitting",
    "attention_dropout": "only little text needs dropout of attention weights too",
    "activation_dropout": "only little text needs dropout inside feed-forward layers too",
    "vocab_size": "large enough for whole words, small enough that subwords occur often",
    "tokens_per_batch": "small enough for many steps in an epoch",
    "warmup_steps": "a small share of the steps",
    "max_steps": "enough for this size; --patience may end the training sooner",
    "evaluate_every": "validation takes less time than training",
    "checkpoint_every": "far enough apart that averaging the checkpoints helps",
    "patience": "stop after this many validations without improvement",
}
# Maximum number of training pairs, and the values of the settings in the order of `CHOSEN`.
_BY_PAIRS = (
    (5_000, ("small", 2, 2, 0.3, 0.2, 0.2, 4_000, 1_024, 400, 8_000, 200, 100, 5)),
    (20_000, ("small", 2, 2, 0.2, 0.0, 0.0, 6_000, 1_024, 400, 12_000, 400, 100, 8)),
    (60_000, ("small", 2, 2, 0.2, 0.0, 0.0, 8_000, 1_024, 400, 20_000, 500, 100, 10)),
    (500_000, ("small", 3, 3, 0.2, 0.0, 0.0, 8_000, 4_096, 1_000, 40_000, 1_000, 500, 10)),
    (float("inf"), ("base", 6, 6, 0.1, 0.0, 0.0, 32_000, 25_000, 4_000, 100_000, 3_000, 1_500, 10)),
)
_ASSUMED_PAIRS = 100_000  # without a corpus, as for a plan or a TOML file
_CHARACTER_PAIRS = 100_000  # of each corpus, whose characters are counted
_RESERVED_PIECES = 260  # 4 special ids and 256 bytes


def keep_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings; unset ones get the values of the training to resume, if any."""
    if not any(pathlib.Path(values["output"], CHECKPOINT_FOLDER).glob("state*.npz")):
        return dict(values)  # no training, or one that ended before its first checkpoint
    try:
        saved = read_settings_file(values["output"])["settings"]
        saved = {**saved, **saved["model"], **saved["recipe"]}
    except (ValueError, LookupError, TypeError):
        return dict(values)  # the training itself reports damage
    return {**values, **{name: saved.get(name) for name in _unset(values)}}


def choose_settings(values: Mapping[str, Any], corpus, say) -> dict[str, Any]:
    """Returns the settings; unset ones get values for this number of training pairs.

    With a named preset, nothing changes. `corpus` has a length; None if the corpus is not known.
    """
    if values["preset"]:
        return dict(values)
    row = _row(corpus)
    chosen = {name: row[name] for name in _unset(values)}
    if corpus is None:
        say(f"The number of training pairs is not known. Defaults for {_ASSUMED_PAIRS:,} pairs:")
    else:
        if "vocab_size" in chosen:
            chosen["vocab_size"] = choose_vocab_size(corpus)
        say(f"Defaults for {len(corpus):,} training pairs:")
    for name, value in chosen.items():
        say(f"  --{name.replace('_', '-')} {value}: {CHOSEN[name]}")
    return {**values, **chosen}


def choose_vocab_size(corpus: Iterable[tuple[str, str]]) -> int:
    """Returns the vocabulary size for a corpus, which has a length."""
    # Scripts with many characters need more subwords, because each character is one.
    characters: set[str] = set()
    parts = getattr(corpus, "corpora", {"": corpus}).values()  # A `MixedCorpus` has several.
    for part in parts:
        for source, target in itertools.islice(part, _CHARACTER_PAIRS):
            characters.update(source, target)
    return max(_row(corpus)["vocab_size"], _RESERVED_PIECES + 2 * len(characters))


def _row(corpus):
    num_pairs = _ASSUMED_PAIRS if corpus is None else len(corpus)
    row = next(row for maximum, row in _BY_PAIRS if num_pairs <= maximum)
    return dict(zip(CHOSEN, row, strict=True))


def _unset(values):
    """Returns the settings to choose; none if a preset is named."""
    if values["preset"]:
        return []
    known: tuple[str, ...] = ()
    if values["start_from"]:
        known = ("preset", "num_encoder_layers", "num_decoder_layers", "dropout")
        known += ("attention_dropout", "activation_dropout", "vocab_size", "warmup_steps")
    elif values["vocabulary"] or values["prepared"] or values["vocabulary_type"] == "subword":
        known = ("vocab_size",)
    if values["flash_attention"]:  # It drops no attention weights.
        known += ("attention_dropout",)
    return [name for name in CHOSEN if values[name] is None and name not in known]
