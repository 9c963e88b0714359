"""`TrainingPlan`: a training with every choice made, and its rounds; `make_plan` makes it."""

import dataclasses
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_transformer import __version__
from keras_transformer.data.mixed_corpus import HeldOutPairs
from keras_transformer.data.tokenizer_pair import TokenizerPair
from keras_transformer.decoding import BeamSearch, search_to_dict
from keras_transformer.errors import UserError
from keras_transformer.inference.model_directory import read_config, read_recipe
from keras_transformer.inference.sentences import SentenceProfile
from keras_transformer.inference.tasks import Task, get_task
from keras_transformer.layouts import (
    CHECKPOINT_FOLDER,
    CONFIG_FILE,
    DIVERGED_BATCH_FILE,
    HISTORY_FILE,
    RECIPE_FILE,
    SETTINGS_FILE,
    TOKENIZER_FILES,
    VALID_FILES,
    WEIGHTS_FILE,
)
from keras_transformer.models import TrainingRecipe, TransformerConfig, get_preset
from keras_transformer.models.micro_batches import num_replicas
from keras_transformer.models.processor import device_kind
from keras_transformer.settings.training_settings import (
    TrainingSettings,
    other_settings,
    read_settings_file,
)
from keras_transformer.training.adaptation import StartingModel
from keras_transformer.training.checkpoints import Checkpoints, Progress
from keras_transformer.training.processes import process_group
from keras_transformer.training.training_data import TrainingData, make_training_data

# Peak of the learning rate when a model is adapted, times d_model, and the steps until then.
ADAPTATION_RATES, ADAPTATION_WARMUP = {"adam": 0.1, "muon": 0.4}, 200


class Round(NamedTuple):
    """Steps of a training without a break, and what is due after them."""

    end: int  # the last step
    saves: bool  # whether a weight file is written
    evaluates: bool


@dataclasses.dataclass(frozen=True)
class TrainingPlan:
    """A training before its first step: all that does not change while it runs."""

    output: Path
    resumes: bool  # from the last checkpoint in `output`
    settings: TrainingSettings  # as they were given
    saved_settings: TrainingSettings  # with what was chosen, as they are in `training.json`
    task: Task
    recipe: TrainingRecipe
    config: TransformerConfig
    start: StartingModel | None  # the model to start from
    tokenizers: TokenizerPair
    data: TrainingData
    sentence_profile: SentenceProfile  # of the text, kept with the model
    held_out: HeldOutPairs | None  # validation pairs, to be kept beside the model
    scores: Mapping[str, Any]  # the `ScoreOnDev` of each validation set, or None
    fingerprint: Mapping[str, Any]  # of text and model: must stay the same when it is resumed
    max_steps: int
    evaluate_every: int
    checkpoint_every: int
    average_windows: tuple[int, ...]  # numbers of last checkpoints to average
    keep_checkpoints: int

    def next_round(self, progress: Progress) -> Round | None:
        """Returns the steps until the next checkpoint or evaluation; None at the end."""
        if self.reason_to_end(progress):
            return None
        step = progress.step
        multiples = [(step // n + 1) * n for n in (self.checkpoint_every, self.evaluate_every)]
        # The first step is a round of its own: the first files are written after it.
        end = min(self.max_steps, *multiples) if step else 1
        is_last = end == self.max_steps
        return Round(
            end,
            saves=is_last or end % self.checkpoint_every == 0,
            evaluates=is_last or end % self.evaluate_every == 0,
        )

    def reason_to_end(self, progress: Progress) -> str | None:
        """Returns why the training ends, and how to allow more steps; None if it goes on."""
        return _reason_to_end(progress, self.max_steps, self.settings)

    @property
    def validation_id(self) -> list:
        """Identifies the validation set and its scores, in a form that JSON can hold.

        Only results with the same value can be compared.
        """
        task_settings = self.task.settings.from_dict(self.settings.task_settings).to_dict()
        names = sorted(name for name in task_settings if not name.endswith("_every"))
        # Sums of ids do not depend on the order and the padding of the batches.
        labels = [np.int64(ids) for _, ids, _ in self.data.valid_batches.get("valid", ())]
        sums = [int(sum((ids**power).sum() for ids in labels)) for power in (1, 2)]
        return [sums, *([name, task_settings[name]] for name in names)]

    def introduction(self, model: keras.Model) -> list[str]:
        """Returns two lines about a `Transformer`, its devices and this plan."""
        settings, config = self.settings, model.config
        parameters = f"{model.count_params():,} parameters"
        if settings.lora is not None:
            num_trained = sum(math.prod(weight.shape) for weight in model.trainable_weights)
            parameters += f", {num_trained:,} trained by LoRA"
        if settings.freeze:
            parameters += f", {' and '.join(settings.freeze)} frozen"
        plan = f"Training until step {self.max_steps:,} "
        plan += f"({self.max_steps / self.data.steps_per_epoch:.1f} epochs)"
        if settings.max_minutes is not None:
            plan += f", or for {settings.max_minutes:g} minutes in total"
        if settings.preset is None and self.recipe.peak_learning_rate is not None:
            rate, steps = self.recipe.peak_learning_rate, self.recipe.warmup_steps
            plan += f"; a learning rate of {rate:.2g} after {steps:,} steps"
        plan += f"; validation every {self.evaluate_every:,} steps"
        if settings.patience is not None and self.scores:
            plan += f", and an end after {settings.patience} of them without gain"
        return [
            f"Model {settings.start_from or settings.preset}: {config.num_encoder_layers} + "
            f"{config.num_decoder_layers} layers, d_model {config.d_model:,}, {parameters}, on "
            f"{_devices(model)}.",
            f"{plan}. The first step takes longer than the others.",
        ]


def make_plan(
    output: Path,
    train_corpus: Any,
    valid_corpora: Mapping[str, Any],
    settings: TrainingSettings,
    given_tokenizers: tuple[Any, Any],
    report: Callable[[str], object],
) -> TrainingPlan:
    """Reads the data of a training and makes all its choices; writes nothing.

    `valid_corpora` are by name; the one that chooses is "valid". `given_tokenizers` are those of
    source and target, or None.
    """
    held_out = valid_corpora.get("valid")
    held_out = held_out if isinstance(held_out, HeldOutPairs) else None
    # Raises if `output` holds something else.
    resumes = has_training(output, VALID_FILES if held_out is not None else ())
    task, recipe = get_task(settings.task), make_recipe(settings)
    max_steps = settings.max_steps or recipe.max_steps
    if resumes:  # Before the text is read, which may take long.
        _report_if_finished(output, max_steps, settings, report)
    start, tokenizers, sizes = _choose_vocabularies(
        task, output if resumes else None, given_tokenizers, train_corpus, settings, report
    )
    config = make_config(settings, recipe, *sizes)
    data = make_training_data(
        train_corpus,
        valid_corpora,
        tokenizers,
        settings,
        recipe,
        _known_packed_width(output, resumes, settings),
        _num_row_parts(settings),
        report,
    )
    fingerprint = {"config": config.to_dict(), "train_recipe": recipe.to_dict()}
    fingerprint |= task.settings.from_dict(settings.task_settings).fixed()
    # An error names the first differences; those of the text may come from those before.
    fingerprint |= data.fingerprint
    is_shared = tokenizers.is_shared or (start is None and settings.shared_vocabulary)
    saved_settings = dataclasses.replace(
        settings, packed_width=data.packed_width, shared_vocabulary=is_shared
    )
    _check_processes(resumes, saved_settings, fingerprint, data)
    if resumes:
        saved_settings.check_resumes(output, fingerprint)
    profile = data.sentence_profile
    windows = settings.average_windows or (recipe.average_checkpoints,)
    return TrainingPlan(
        output=output,
        resumes=resumes,
        settings=settings,
        saved_settings=saved_settings,
        task=task,
        recipe=recipe,
        config=config,
        start=start,
        tokenizers=tokenizers,
        data=data,
        sentence_profile=profile if start is None else start.extended(profile),
        held_out=held_out,
        scores={
            name: _make_score(task, corpus, tokenizers, settings, recipe)
            for name, corpus in valid_corpora.items()
        },
        fingerprint=fingerprint,
        max_steps=max_steps,
        evaluate_every=settings.evaluate_every or data.steps_per_epoch,
        checkpoint_every=settings.checkpoint_every or data.steps_per_epoch,
        average_windows=windows,
        keep_checkpoints=max(settings.keep_checkpoints or 1, *windows),
    )


def has_training(output: Path, more_files: Sequence[str] = ()) -> bool:
    """Returns whether `output` has a checkpoint to resume; raises if it holds something else.

    `more_files` are names of files that this training will write, but not every training.
    """
    if not (output / SETTINGS_FILE).exists():
        names = [CONFIG_FILE, WEIGHTS_FILE, RECIPE_FILE, HISTORY_FILE, CHECKPOINT_FOLDER]
        names += [DIVERGED_BATCH_FILE, *sorted(TOKENIZER_FILES), *more_files]
        missing = SETTINGS_FILE
    elif Checkpoints(output / CHECKPOINT_FOLDER).exists():
        return True
    else:
        read_settings_file(output)  # raises if the file is of another program
        names = [CONFIG_FILE, WEIGHTS_FILE]  # written when a training is finished
        missing = f"{CHECKPOINT_FOLDER}/{Checkpoints(output).state_path.name}"
    if kept := [name for name in names if (output / name).exists()]:
        raise UserError(
            f"{str(output)!r} holds {', '.join(kept)} without {missing}: it cannot be trained "
            "further, and nothing in it is overwritten. Choose another output directory."
        )
    return False


def make_recipe(settings: Any) -> TrainingRecipe:
    """Returns the recipe of a preset or of the model to adapt, with the changes of the settings."""
    if settings.preset is not None:
        recipe = get_preset(settings.preset).recipe
    else:
        start = read_config(settings.start_from)
        recipe = read_recipe(settings.start_from)
        if recipe is None:  # as in an imported model
            search = search_to_dict(start["search"] or BeamSearch())
            fields = "beam_size", "length_penalty", "length_normalization"
            recipe = TrainingRecipe(**{name: search[name] for name in fields if name in search})
        optimizer = settings.recipe.get("optimizer", recipe.optimizer)
        peak = ADAPTATION_RATES[optimizer] / start["model"].d_model
        recipe = dataclasses.replace(
            recipe, peak_learning_rate=peak, warmup_steps=ADAPTATION_WARMUP
        )
    return TrainingRecipe.from_dict({**recipe.to_dict(), **settings.recipe})


def make_config(
    settings: Any,
    recipe: TrainingRecipe,
    vocab_size: int,
    target_vocab_size: int | None = None,
) -> TransformerConfig:
    """Returns the config of a preset or of the model to start from, with the settings' changes."""
    sizes = {"vocab_size": vocab_size, "target_vocab_size": target_vocab_size}
    if settings.start_from is not None:
        config = read_config(settings.start_from)["model"].to_dict()
    else:
        config = get_preset(settings.preset).config
    config = TransformerConfig.from_dict({**config, **settings.model, **sizes})
    # Equal lengths fit: the recipe counts EOS, and the decoder's input has BOS instead.
    if config.max_length is not None and recipe.max_length > config.max_length:
        raise UserError(
            f"The model has {config.max_length} positions, fewer than the {recipe.max_length} "
            "tokens of the longest training sentence (`max_length` of the recipe). Received: "
            f"max_length={recipe.max_length!r} with a config of max_length={config.max_length!r}"
        )
    return config


def _report_if_finished(output, max_steps, settings, report):
    reached = Progress.from_dict(Checkpoints(output / CHECKPOINT_FOLDER).metadata() or {})
    if reason := _reason_to_end(reached, max_steps, settings):
        report(f"With the same text, nothing is left to train: {reason}")


def _choose_vocabularies(task, folder, given, train_corpus, settings, report):
    """Returns the model to start from or None, the tokenizers, and the sizes in the config."""
    if settings.start_from is not None:
        start = StartingModel(settings, given)
        return start, start.tokenizers, start.vocab_sizes
    tokenizers = _choose_tokenizers(task, folder, given, train_corpus, settings, report)
    return None, tokenizers, tokenizers.sizes


def _choose_tokenizers(task, folder, given, train_corpus, settings, report):
    """Returns the tokenizers that are given, saved in `folder`, or learned from the corpus."""
    source, target = given
    if source is not None and (target is not None or task.shares_a_given_tokenizer):
        return TokenizerPair(source, target)
    if folder is not None:
        shared = read_settings_file(folder)["settings"].get("shared_vocabulary", True)
        if shared != settings.shared_vocabulary:  # The files have other names.
            difference = f"shared_vocabulary was {shared}, now {settings.shared_vocabulary}"
            raise other_settings(folder, [difference])
        saved = TokenizerPair.load(folder, settings.shared_vocabulary)
        return TokenizerPair(source or saved.source, saved.target)
    return task.learn_tokenizers(train_corpus, settings, source, report)


def _known_packed_width(output, resumes, settings):
    """Returns the width of the settings, or that of the training to resume; None if it is open."""
    if settings.packed_width is not None or not resumes:
        return settings.packed_width
    # The training may have begun on another backend.
    return read_settings_file(output)["settings"].get("packed_width") or 0


def _num_row_parts(settings):
    """Returns how many parts the rows of a batch are cut into: micro-batches of each replica."""
    num_devices = (settings.gpus or 1) * process_group().num_processes
    return num_devices // settings.model_parallel * settings.micro_batches


def _make_score(task, corpus, tokenizers, settings, recipe):
    score = task.make_score(corpus, tokenizers, settings, recipe)
    if score is not None:
        score.num_streams, score.group = settings.streams, process_group()
    return score


def _check_processes(resumes, settings, fingerprint, data):
    """Raises a `UserError` if the processes of a training were started with different values."""
    backend = keras.backend.backend()
    process_group().check_equal(
        {
            "keras_transformer": __version__,
            "keras": keras.__version__,
            backend: sys.modules[backend].__version__,
            "resumes": resumes,
            **settings.to_dict(),
            "data": fingerprint,
            "validation": data.valid_checksums(),
        }
    )


def _reason_to_end(progress, max_steps, settings):
    limit, patience = settings.max_minutes, settings.patience
    if progress.step > max_steps:
        done = f"{progress.step:,} steps are done, more than the {max_steps:,} allowed"
        return f"{done}. Allow more steps to go on."
    if progress.step == max_steps:
        return f"all {max_steps:,} steps are done. Allow more steps to go on."
    if limit is not None and progress.minutes >= limit:
        return f"{limit:g} minutes over all runs are used up. Allow more minutes to go on."
    if patience is not None and progress.without_gain >= patience:
        return f"the patience of {patience} validations is used up. Raise it to go on."
    return None


def _devices(model):
    kind, count = device_kind(), num_replicas(model)
    if (distribution := keras.distribution.distribution()) is not None:
        count = distribution.device_mesh.devices.size
    return f"{count} {kind}s" if count > 1 else "the CPU" if kind == "CPU" else f"one {kind}"
