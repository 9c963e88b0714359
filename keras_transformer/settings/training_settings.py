"""`TrainingSettings`: the settings of a training run, which are saved beside the model."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from annotated_types import Len
from pydantic import Field

from keras_transformer.errors import UserError
from keras_transformer.files import atomic_write, read_json
from keras_transformer.layouts import SETTINGS_FILE
from keras_transformer.settings.base import (
    MAY_CHANGE,
    Allowed,
    Changes,
    Count,
    CountOrZero,
    Counts,
    Folder,
    Items,
    Metavar,
    Positive,
    Rate,
    Seed,
    Settings,
    settings_dataclass,
)
from keras_transformer.settings.presets import PresetName, TrainingRecipe
from keras_transformer.settings.transformer_config import TransformerConfig

_OF_TEXT = {"pairs", "target_tokens", "checksum", "line_ends"}  # entries of a fingerprint
# Settings of tasks that lay beside the others in files of version 1.
_OF_TASKS = {
    "translation": ("bleu_every", "bleu_beam_size", "bleu_lowercase", "bleu_tokenize"),
    "parsing": ("linearization", "f1_every", "f1_beam_size", "f1_trees"),
}
Normalization = Literal["nfc", "nmt_nfkc", "nmt_nfkc_cf", "nfkc", "nfkc_cf", "identity"]
Parts = Annotated[
    Items[Literal["encoder", "decoder", "embedding"]],
    Len(1, 2),
    Allowed("one or two of encoder, decoder and embedding"),
    Metavar("PART,PART"),
]


@settings_dataclass
class TrainingSettings(Settings):
    """The settings of `train`, except the corpora.

    Args:
        preset: Name of a model with its training hyper-parameters: tiny, tiny_deep, small,
            small_deep, base, big, big_en_fr or table3_..., for parsing parsing_small, parsing or
            parsing_semi_supervised; None for base, or with `start_from` for the hyper-parameters of
            that model's own training, at a learning rate of 0.1 / d_model (with Muon 0.4 /
            d_model) after 200 steps.
        model: Changes to the preset's `TransformerConfig`, by field.
        recipe: Changes to the preset's `TrainingRecipe`, by field.
        tokenizer: Kind of vocabulary: `bpe` and `unigram` learn subwords from raw text; `subword`
            takes text that is already split by spaces, with @@ where a word goes on, and in parsing
            the words that occur at least twice.
        vocab_size: Number of subwords, special ones and single bytes included; for `subword` the
            maximum; None for all subwords, with `subword`.
        normalization: Normalization of the text of a new vocabulary: `nfc` keeps all that a reader
            needs; `nmt_nfkc` also writes x2 for x² and the Chinese comma as a plain one;
            `nmt_nfkc_cf` writes lower case too; not for `subword`.
        shared_vocabulary: Whether both languages share one vocabulary and one embedding; words and
            trees never do.
        bpe_dropout: Share of bpe merges left out at random, differently in each epoch, which
            regularizes, but needs more steps to learn as much; for long trainings.
        max_steps: Maximum number of steps over all runs; None for the number of the preset.
        max_minutes: Maximum minutes of all runs from their first steps on; None for no limit.
        evaluate_every: Number of steps between validations; None for one epoch.
        checkpoint_every: Number of steps between checkpoints; None for one epoch.
        keep_checkpoints: Number of checkpoints to keep, if the final average does not need more;
            None for the number that the average needs.
        patience: Stop after N validations in a row without a better loss, BLEU or F1; None for
            never.
        average_windows: Several numbers of last checkpoints, such as 1,5,10: the best average on
            the validation set, by BLEU or F1, becomes the finished model; None for
            `average_checkpoints` alone.
        select_best: Choose the finished model by BLEU or F1 on the validation set, among the
            averages and the best single checkpoint; without it the first average is final, as in
            section 6.1.
        mixed_precision: Compute in bfloat16; weights stay in float32.
        gpus: Number of GPUs of each process; it may change when a training is resumed, as long as
            the batches stay the same (1, 2, 4 or 8 GPUs in all); None for one, if there is one.
        model_parallel: Cut each matrix over N of these GPUs, which must divide their number; for
            models too large for one; JAX only.
        micro_batches: Cut each batch into N parts and sum their gradients: less memory for the same
            step.
        streams: Compute N parts of each batch at the same time, each with an equal share of the
            CPU's cores, which is faster with small models.
        packed_width: Put several pairs into each row of N positions (fewer on the side with fewer
            tokens): one batch shape, and less padding; 0 for one pair in each row; None for the
            length of the longest sentence with JAX, which compiles each shape, or 0 otherwise.
        jit_compile: Compile the training step with XLA, which takes many seconds for each batch
            shape and may be faster on GPUs afterwards.
        deterministic: Compute the same bits every time on the same machine, also when resumed, in
            the whole process; slower on GPUs; TensorFlow only.
        tensorboard: Write figures, sample translations and attention maps for TensorBoard into the
            folder tensorboard of the model directory.
        seed: Seed of weights, order of the data and dropout.
        task: Task of the model: `translation`, `parsing` or another registered one.
        task_settings: Changes to the settings that only this task has, by field: `bleu_every`,
            `bleu_beam_size`, `bleu_lowercase` and `bleu_tokenize` for translation; `linearization`
            (changes to the default `Linearization`), `f1_every`, `f1_beam_size` and `f1_trees` for
            parsing.
        start_from: Model directory with the config, weights and tokenizers to start from, such as
            those of a model to adapt; a preset then gives only the training hyper-parameters; None
            for new weights.
        freeze: Parts of the model that are not trained, such as encoder,embedding; the embedding is
            that of both languages; None for training all parts.
        lora: Rank of LoRA: only factors of this rank beside the linear maps are trained, and merged
            into the finished model; needs `start_from`; None for training all weights.

    Example:

    >>> keras_transformer.training.TrainingSettings(preset="tiny", max_minutes=3).seed
    1
    """

    preset: PresetName | None = None
    model: Changes = Field(default_factory=dict)
    recipe: Changes = Field(default_factory=dict)
    tokenizer: Literal["bpe", "unigram", "subword"] = "bpe"
    vocab_size: Count | None = 8000
    normalization: Normalization = "nfc"
    shared_vocabulary: bool = True
    bpe_dropout: Rate = 0.0
    max_steps: Annotated[Count | None, MAY_CHANGE] = None
    max_minutes: Annotated[Positive | None, MAY_CHANGE] = None
    evaluate_every: Annotated[Count | None, MAY_CHANGE] = None
    checkpoint_every: Annotated[Count | None, MAY_CHANGE] = None
    keep_checkpoints: Annotated[Count | None, MAY_CHANGE] = None
    patience: Annotated[Count | None, MAY_CHANGE] = None
    average_windows: Annotated[Counts | None, MAY_CHANGE] = None
    select_best: Annotated[bool, MAY_CHANGE] = True
    mixed_precision: bool = False
    gpus: Annotated[Count | None, MAY_CHANGE] = None
    model_parallel: Annotated[Count, MAY_CHANGE] = 1
    micro_batches: Annotated[Count, MAY_CHANGE] = 1
    streams: Annotated[Count, MAY_CHANGE] = 1
    packed_width: CountOrZero | None = None
    jit_compile: bool = False
    deterministic: bool = False
    tensorboard: Annotated[bool, MAY_CHANGE] = False
    seed: Seed = 1
    task: str = "translation"
    task_settings: Annotated[Changes, MAY_CHANGE] = Field(default_factory=dict)
    start_from: Folder | None = None
    freeze: Parts | None = None
    lora: Count | None = None

    def __post_init__(self):
        if self.preset is None and self.start_from is None:
            object.__setattr__(self, "preset", "base")
        if self.bpe_dropout and self.tokenizer != "bpe":
            raise ValueError(
                '`bpe_dropout` needs `tokenizer="bpe"`, which learns the merges that it drops. '
                f"Received: bpe_dropout={self.bpe_dropout!r} with tokenizer={self.tokenizer!r}"
            )
        if self.lora is not None and (self.start_from is None or self.freeze):
            raise ValueError(
                "`lora` adapts the model of `start_from`, and freezes its weights itself. "
                f"Received: lora={self.lora!r}, start_from={self.start_from!r}, "
                f"freeze={self.freeze!r}"
            )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Returns the settings in a dict from `to_dict`, also of version 1, or raises a ValueError.

        Args:
            values: A dict of fields; those left out keep their defaults.
        """
        moved = set().union(*_OF_TASKS.values())
        if isinstance(values, Mapping) and moved & values.keys():
            names = _OF_TASKS.get(values.get("task", "translation"), ())
            task_settings = {name: values[name] for name in names if name in values}
            values = {name: value for name, value in values.items() if name not in moved}
            values["task_settings"] = task_settings
        return super().from_dict(values)

    def save(self, directory: str | Path, fingerprint: Mapping) -> None:
        """Writes the settings into a model directory.

        Args:
            directory: The model directory.
            fingerprint: Other values that a resumed training must share, such as the data's size.
        """
        content = {"settings": self.to_dict(), "fingerprint": dict(fingerprint)}
        with atomic_write(Path(directory) / SETTINGS_FILE) as temporary:
            temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")

    def check_resumes(self, directory: str | Path, fingerprint: Mapping) -> None:
        """Checks that a training can go on in a model directory; the arguments are those of `save`.

        Raises:
            UserError: If it was started with other settings or data, or the file is damaged.
        """
        content = read_settings_file(directory)
        try:
            # Files of older versions lack newer settings, which get their defaults.
            defaults = {"row_multiple": 8, **TrainingSettings().to_dict()}
            before = _filled({**defaults, **content["fingerprint"], **content["settings"]})
        except (ValueError, TypeError) as error:
            raise _damaged(directory) from error
        now = _filled(json.loads(json.dumps({**self.fixed(), **fingerprint})))
        # `config` and `train_recipe` already contain these changes.
        for changes, whole in (("model", "config"), ("recipe", "train_recipe")):
            if whole in now and whole in before:
                del now[changes]
        for values in (before, now):
            values["packed_width"] = values["packed_width"] or 0  # None in files of version 1.0
        # Files of older versions lack these.
        before.setdefault("line_ends", now.get("line_ends"))
        if "linearization" in now:
            saved = before.get("linearization", {})
            # Files of older versions lack the joined form.
            before["linearization"] = {**now["linearization"], "joined": False, **saved}
        now = dict(sorted(now.items(), key=lambda item: item[0] in fingerprint))  # at the end
        different = {name for name in now if before.get(name) != now[name]}
        if different & _OF_TEXT and different <= _OF_TEXT | {"batch_shapes", "mixture"}:
            raise UserError(
                f"The training text differs from that of the training in {str(directory)!r}, of "
                f"{before.get('pairs')!r} pairs. Give the same text in the same languages to go on "
                "or another output directory for a new training; `start_from` adapts a finished "
                "model to other text. "
                f"Received: another text, of {now['pairs']} pairs"
            )
        if different and different <= {"row_multiple", "batch_shapes"}:
            names = "gpus", "model_parallel", "micro_batches"
            saved = ", ".join(f"{name}={before.get(name)}" for name in names)
            raise UserError(
                f"The batches would differ from those of the training in {str(directory)!r}, whose "
                "rows are divided among the devices and micro-batches. Keep the product of both "
                f"numbers, or choose one that divides 8. Received: other numbers than {saved}"
            )
        if differences := _differences("", {name: before.get(name) for name in now}, now):
            raise other_settings(directory, differences[:3])


def other_settings(directory: str | Path, differences: Sequence[str]) -> UserError:
    """Returns the error of a training that cannot be resumed with these settings."""
    return UserError(
        f"The training in {str(directory)!r} was started with other settings: "
        f"{'; '.join(differences)}. Use the same ones, or another output directory."
    )


def read_settings_file(directory: str | Path) -> dict:
    """Returns the dicts `settings` and `fingerprint` that `TrainingSettings.save` wrote."""
    try:
        content = read_json(Path(directory) / SETTINGS_FILE)
        if not all(isinstance(content[name], dict) for name in ("settings", "fingerprint")):
            raise ValueError("they are dicts")
        return content
    except (ValueError, KeyError) as error:
        raise _damaged(directory) from error


def _filled(values):
    """Returns the values, with defaults for settings that are newer than the file."""
    defaults = {"config": TransformerConfig(1), "train_recipe": TrainingRecipe()}
    filled = {
        name: {**new.to_dict(), **values[name]} for name, new in defaults.items() if name in values
    }
    return {**values, **filled}


def _damaged(directory):
    path = str(Path(directory) / SETTINGS_FILE)
    return UserError(f"Cannot resume: {path!r} is missing or damaged.")


def _differences(name, before, now):
    """Describes how two values differ; entries of dicts are compared one by one."""
    if before == now:
        return []
    if isinstance(before, dict) and isinstance(now, dict):
        return [
            difference
            for key in {**before, **now}
            for difference in _differences(key, before.get(key), now.get(key))
        ]
    return [f"{name} was {before!r}, now {now!r}"]
