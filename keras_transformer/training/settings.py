"""Every setting of a training run, in one place that is saved beside the model."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

from keras_transformer.errors import UserError
from keras_transformer.files import atomic_write, read_json
from keras_transformer.models import TrainingRecipe
from keras_transformer.parsing.linearization import Linearization

SETTINGS_FILE = "training.json"
TOKENIZERS = ("bpe", "unigram", "subword")
TASKS = ("translation", "parsing")

# Entries of `fingerprint` that files written before them do not have.
_NEW_IN_FINGERPRINT = frozenset({"line_ends"})

# These may differ when a training is resumed: they do not change what the next step computes.
_MAY_CHANGE = frozenset(
    "max_steps max_minutes checkpoint_every evaluate_every bleu_every keep_checkpoints "
    "patience average_windows bleu_beam_size bleu_lowercase bleu_tokenize f1_every f1_beam_size "
    "f1_trees gpus micro_batches tensorboard".split()
)


@dataclasses.dataclass(frozen=True)
class TrainingSettings:
    """What `train` needs to know besides the text.

    Args:
        preset: name of model and recipe, see `keras_transformer.models.list_presets`.
        model: changes to the preset's `TransformerConfig`, by field name.
        recipe: changes to the preset's `TrainingRecipe`, by field name.
        task: "translation", or "parsing": sentences into trees, from `TreebankCorpus`.
        linearization: fields of `Linearization` that are not its defaults, as those of the corpora;
            for parsing.
        tokenizer: "bpe" or "unigram" learn subwords from raw text; "subword" takes text that is
            already split into pieces, with `@@` where a word goes on; in parsing the words
            that occur twice or more. What trees are written in, if not words, are ids of their own.
        vocab_size: number of subwords; for "subword" the largest number, None for all pieces.
        shared_vocabulary: one vocabulary and embedding for both languages, or one for each; words
            and trees never share one, whatever this says.
        bpe_dropout: share of merges left out at random while the training text is encoded, anew
            for every epoch; 0 switches it off. Needs "bpe".
        max_steps: updates in all, over all runs on the directory; None takes the recipe's.
        max_minutes: minutes of training in all, over all runs; None for no limit.
        evaluate_every: steps between evaluations on the validation set; None for one epoch.
        bleu_every: evaluations between two that also translate the validation set; 0 never.
        checkpoint_every: steps between checkpoints; None for one epoch.
        patience: end the training after this many evaluations in a row without a better loss or
            score on the validation set; None never does.
        keep_checkpoints: number of weight files to keep; None, or fewer than `average_windows`
            need, keeps what these need.
        average_windows: numbers of last checkpoints whose averages compete at the end, by BLEU on
            the validation set; None takes the recipe's number alone.
        bleu_beam_size: beam of these translations; 1 is greedy.
        bleu_lowercase: compare in lower case.
        bleu_tokenize: sacreBLEU tokenizer; None takes "13a", or "none" for "subword" text, which
            is tokenised already.
        f1_every: in parsing, evaluations between two that also parse the validation set; 0 never.
        f1_beam_size: beam of these parses; 1 is greedy.
        f1_trees: number of trees to parse, drawn at random from the validation set once; None for
            all of them.
        mixed_precision: compute in bfloat16, weights in float32.
        gpus: number of devices; None uses one GPU if there is one. A training may be resumed on
            another number if the batches are the same, as with 1, 2, 4 and 8.
        micro_batches: parts that each batch is cut into, whose gradients are summed: the memory of
            a part, for the same step. May change when a training is resumed, as `gpus` may.
        packed_width: put several pairs into each row, of so many positions on both sides: all
            batches have one shape, and less padding; None: one pair in each row.
        jit_compile: compile steps with XLA; needs many seconds for each batch shape.
        deterministic: use operations that give the same bits every time, where TensorFlow has
            faster ones that do not; for the whole process, from then on.
        tensorboard: write figures, sample translations and attention maps for TensorBoard into
            `tensorboard/` in the model directory.
        seed: seed of weights, order of the data and dropout.

    Raises:
        ValueError: if a value is out of range.

    Example:

    >>> from keras_transformer.training import TrainingSettings
    >>> TrainingSettings(preset="tiny", max_minutes=3).seed
    1
    """

    preset: str = "base"
    model: Mapping = dataclasses.field(default_factory=dict)
    recipe: Mapping = dataclasses.field(default_factory=dict)
    tokenizer: str = "bpe"
    vocab_size: int | None = 8000
    shared_vocabulary: bool = True
    bpe_dropout: float = 0.0
    max_steps: int | None = None
    max_minutes: float | None = None
    evaluate_every: int | None = None
    bleu_every: int = 1
    checkpoint_every: int | None = None
    keep_checkpoints: int | None = None
    patience: int | None = None
    average_windows: tuple[int, ...] | None = None
    bleu_beam_size: int = 1
    bleu_lowercase: bool = False
    bleu_tokenize: str | None = None
    mixed_precision: bool = False
    gpus: int | None = None
    micro_batches: int = 1
    packed_width: int | None = None
    jit_compile: bool = False
    deterministic: bool = False
    tensorboard: bool = False
    seed: int = 1
    task: str = "translation"
    linearization: Mapping = dataclasses.field(default_factory=dict)
    f1_every: int = 1
    f1_beam_size: int = 1
    f1_trees: int | None = None

    def __post_init__(self):
        for name in ("model", "recipe"):
            object.__setattr__(self, name, dict(getattr(self, name)))
        if self.average_windows is not None:
            object.__setattr__(self, "average_windows", tuple(self.average_windows))
        self._check_task()
        if self.tokenizer not in TOKENIZERS:
            raise ValueError(
                f"`tokenizer` must be one of {TOKENIZERS}. Received: tokenizer={self.tokenizer!r}"
            )
        if not 0.0 <= self.bpe_dropout < 1.0:
            raise ValueError(
                f"`bpe_dropout` must be in [0, 1). Received: bpe_dropout={self.bpe_dropout!r}"
            )
        if self.bpe_dropout and self.tokenizer != "bpe":
            raise ValueError(
                '`bpe_dropout` needs `tokenizer="bpe"`, which learns the merges that it drops. '
                f"Received: bpe_dropout={self.bpe_dropout!r} with tokenizer={self.tokenizer!r}"
            )
        positive = (
            "vocab_size max_steps max_minutes evaluate_every checkpoint_every patience "
            "keep_checkpoints "
            "bleu_beam_size gpus micro_batches packed_width f1_beam_size f1_trees"
        )
        for name in positive.split():
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"`{name}` must be positive. Received: {name}={value!r}")
        for name in ("bleu_every", "f1_every"):
            if getattr(self, name) < 0:
                raise ValueError(
                    f"`{name}` must be 0 or more. Received: {name}={getattr(self, name)!r}"
                )
        # NumPy's generators take no larger seed.
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"`seed` must be from 0 to {2**32 - 1}. Received: seed={self.seed!r}")
        if self.average_windows is not None and (
            not self.average_windows or min(self.average_windows) < 1
        ):
            raise ValueError(
                "`average_windows` must be positive numbers. "
                f"Received: average_windows={self.average_windows!r}"
            )

    def _check_task(self):
        if self.task not in TASKS:
            raise ValueError(f"`task` must be one of {TASKS}. Received: task={self.task!r}")
        if self.task == "parsing":
            if self.bpe_dropout:
                raise ValueError(
                    "`bpe_dropout` is for translation. "
                    f"Received: bpe_dropout={self.bpe_dropout!r} with task='parsing'"
                )
            linearization = Linearization.from_dict(dict(self.linearization))
            object.__setattr__(self, "linearization", linearization.to_dict())
            object.__setattr__(self, "shared_vocabulary", False)
        elif self.linearization:
            raise ValueError(
                "`linearization` is for parsing. "
                f"Received: linearization={self.linearization!r} with task={self.task!r}"
            )

    def to_dict(self) -> dict:
        """Returns the settings as a dict for JSON."""
        content = dataclasses.asdict(self)
        content["average_windows"] = self.average_windows and list(self.average_windows)
        return content

    @classmethod
    def from_dict(cls, settings: Mapping) -> "TrainingSettings":
        """Builds settings from a dict.

        Args:
            settings: field names and values.

        Returns:
            `TrainingSettings`.

        Raises:
            ValueError: if a name is unknown or a value wrong.
        """
        known = {field.name for field in dataclasses.fields(cls)}
        unknown = sorted(set(settings) - known)
        if unknown:
            raise ValueError(
                f"Unknown training settings {unknown}; known are {sorted(known)}. "
                f"Received: settings={dict(settings)!r}"
            )
        return cls(**settings)

    def save(self, directory: str | Path, fingerprint: Mapping) -> None:
        """Writes the settings, and what they led to, into a model directory.

        Args:
            directory: model directory.
            fingerprint: what must be the same when the training is resumed, e.g. the size of the
                data.
        """
        content = {"settings": self.to_dict(), "fingerprint": dict(fingerprint)}
        with atomic_write(Path(directory) / SETTINGS_FILE) as temporary:
            temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")

    def check_resumes(self, directory: str | Path, fingerprint: Mapping) -> None:
        """Raises if the training in a model directory was started with other settings or data.

        Args:
            directory: model directory.
            fingerprint: as in `save`.

        Raises:
            UserError: names the first settings that differ, or the damaged file.
        """
        content = read_settings_file(directory)
        try:
            # What older files do not have yet was the default.
            defaults = {"row_multiple": 8, **TrainingSettings().to_dict()}
            before = {**defaults, **content["fingerprint"], **content["settings"]}
            if "train_recipe" in before:
                before["train_recipe"] = {**TrainingRecipe().to_dict(), **before["train_recipe"]}
        except (ValueError, TypeError) as error:
            raise _damaged(directory) from error
        now = json.loads(json.dumps({**self.to_dict(), **fingerprint}))
        # The same changes as in the config and the recipe that came of them.
        same = {"model": "config", "recipe": "train_recipe"}
        differences = [
            difference
            for name, value in now.items()
            if name not in _MAY_CHANGE
            and not (name in _NEW_IN_FINGERPRINT and name not in before)
            and not (same.get(name) in now and same.get(name) in before)
            for difference in _differences(name, before.get(name), value)
        ]
        if differences:
            raise UserError(
                f"The training in {str(directory)!r} was started with other settings: "
                f"{'; '.join(differences[:3])}. Use the same ones, or another output directory."
            )


def read_settings_file(directory: str | Path) -> dict:
    """Returns what `TrainingSettings.save` wrote: dicts `settings` and `fingerprint`.

    Args:
        directory: model directory.

    Raises:
        UserError: if the file is missing or damaged.
    """
    try:
        content = read_json(Path(directory) / SETTINGS_FILE)
        if all(isinstance(content[name], dict) for name in ("settings", "fingerprint")):
            return content
    except (ValueError, KeyError) as error:
        raise _damaged(directory) from error
    raise _damaged(directory)


def _damaged(directory) -> UserError:
    path = str(Path(directory) / SETTINGS_FILE)
    return UserError(f"Cannot resume: {path!r} is missing or damaged.")


def _differences(name: str, before, now) -> list[str]:
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
