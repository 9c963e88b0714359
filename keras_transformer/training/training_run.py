"""One run of a training, after the data is read and the model is built."""

import dataclasses
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras

from keras_transformer.data.tokenizer_pair import TokenizerPair
from keras_transformer.errors import StopSignals, UserError
from keras_transformer.inference.tasks import all_tasks, get_task
from keras_transformer.models.micro_batches import num_replicas
from keras_transformer.settings.training_recipe import TrainingRecipe
from keras_transformer.settings.training_settings import TrainingSettings
from keras_transformer.training.averaging import choose_final_weights
from keras_transformer.training.callbacks import (
    DivergedError,
    HistoryFile,
    StepProgress,
    StopOnNonFiniteLoss,
    TimeLimit,
    save_diverged_batch,
)
from keras_transformer.training.checkpoints import Checkpoints, Progress
from keras_transformer.training.evaluation_loop import EvaluationLoop, history_columns
from keras_transformer.training.loss_model import LossModel
from keras_transformer.training.metrics import TokenEvaluator
from keras_transformer.training.output_directory import (
    CHECKPOINT_FOLDER,
    HISTORY_FILE,
    start_directory,
)
from keras_transformer.training.score_on_dev import ScoreOnDev
from keras_transformer.training.tensorboard_log import TENSORBOARD_FOLDER, TensorBoardLog
from keras_transformer.training.training_data import TrainingData

# Nats per token: guessing costs the logarithm of the vocabulary size, about 10.
_EXPLODED_LOSS = 100.0


@dataclasses.dataclass(frozen=True)
class TrainingResult:
    """The result of a call of `train`.

    `pipeline` and `score` also have the names of their task: `translator` and `bleu`, or `parser`
    and `f1`. The names of other tasks are None.

    Attributes:
        task: name of the task.
        pipeline: `Translator` or `Parser` with the final weights, as saved in the directory.
        score: BLEU or F1 of the final weights on the validation set, or None.
        steps, epochs, minutes: updates, passes over the data, and time of training in all runs.
        valid_loss: cross-entropy per token of the final weights on the validation set, or None.
        history: rows of `history.csv`.

    Example:

    >>> from keras_transformer.training import TrainingResult
    >>> result = TrainingResult(
    ...     task="translation", pipeline=None, score=31.4, steps=100, epochs=1.5, minutes=2.0,
    ...     valid_loss=1.8, history=[])
    >>> result.bleu, result.f1
    (31.4, None)
    """

    task: str
    pipeline: Any
    score: float | None
    steps: int
    epochs: float
    minutes: float
    valid_loss: float | None
    history: list[dict[str, str]]

    def __getattr__(self, name: str):
        if not name.startswith("_"):
            for task in all_tasks():
                if name in (task.result_name, task.score_name):
                    value = self.pipeline if name == task.result_name else self.score
                    return value if task.name == self.task else None
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


@dataclasses.dataclass(eq=False)
class TrainingRun:
    """One run: fits the model, evaluates, saves, and chooses the final weights."""

    output: Path
    settings: TrainingSettings
    recipe: TrainingRecipe
    tokenizers: TokenizerPair
    data: TrainingData
    loss_model: LossModel
    score: ScoreOnDev | None
    report: Callable[[str], object]
    signals: StopSignals

    def __post_init__(self):
        settings, recipe, data, score = self.settings, self.recipe, self.data, self.score
        self.model = self.loss_model.transformer
        # `fit` has to leave the weights of the last step, from which a later run goes on.
        self.loss_model.optimizer.averages_at_end = False
        self.task = get_task(settings.task)
        self.windows = settings.average_windows or (recipe.average_checkpoints,)
        keep = max(settings.keep_checkpoints or 1, *self.windows)
        self.checkpoints = Checkpoints(self.output / CHECKPOINT_FOLDER, keep)
        columns = history_columns(self.task.score_name)
        self.history = HistoryFile(self.output / HISTORY_FILE, columns)
        self.total_steps = settings.max_steps or recipe.max_steps
        self.progress = Progress.from_dict(self.checkpoints.restore_state(self.loss_model) or {})
        if self.progress.step:
            # An interrupted evaluation is repeated: its row, if it was written, is removed.
            self.history.start(self.progress.step - bool(self.progress.unfinished_row))
        self.time_limit = TimeLimit(settings.max_minutes, self.progress.minutes)
        self.evaluator = TokenEvaluator(self.model)
        if score is not None:
            score.set_model(self.model)
        self.board = None
        if settings.tensorboard:
            folder = self.output / TENSORBOARD_FOLDER
            padding = data.batches.padding_share(0)
            self.board = TensorBoardLog(folder, data.tokens_per_step, padding)
        self.loop = EvaluationLoop(self)

    def checkpoint_text(self) -> str:
        """Returns a message for an interruption: the checkpoint that the next run goes on from."""
        saved = self.loop.saved_step
        if not saved:
            return "interrupted before the first checkpoint; the next run starts from the beginning"
        return (
            f"interrupted after step {self.progress.step:,}; the checkpoint of step {saved:,} is "
            f"in {str(self.checkpoints.directory)!r}, and the next run goes on from there"
        )

    def fit(self, callbacks, show: Callable[[int, int | None, str], object] | None) -> None:
        """Trains until a limit of the settings is reached; `show` is the `progress` of `train`."""
        progress = self.progress
        if progress.step:
            self.report(f"Resuming after step {progress.step:,}, {progress.minutes:.1f} minutes.")
        self.checkpoints.check_room(self.loss_model)
        self.loop.set_model(self.loss_model)
        self.loop.finish_evaluation()
        if progress.why_it_ends(self.total_steps, self.settings):
            return
        for line in self._description():
            self.report(line)
        # A failed start leaves nothing behind.
        begins = keras.callbacks.LambdaCallback(
            on_train_batch_end=self._begin,
            # Before the other callbacks, which read the mean loss.
            on_epoch_begin=lambda epoch, logs: self.loop.restore_loss(),
        )
        stop = StopOnNonFiniteLoss(every=1, limit=_EXPLODED_LOSS)
        # After the others: the loop sees whether the time is up, and they do not time the loop.
        watchers = [begins, self.time_limit, stop, *filter(None, [self.board]), self.loop]
        if show is not None:
            watchers.append(StepProgress(show, self.total_steps, self.data.tokens_per_step))
        callbacks = [*watchers, *callbacks]
        # Keras resets its mean loss in each of its epochs. These end at evaluations, so the first
        # epoch of a run that resumes between two evaluations is shorter, and restores the mean.
        every = self.loop.evaluate_every
        started, steps = divmod(progress.step, every)
        if steps:
            self._fit(callbacks, started, started + 1, every - steps, show is None)
            started += 1
        if not self.loss_model.stop_training and progress.step < self.total_steps:
            epochs = math.ceil(self.total_steps / every)
            self._fit(callbacks, started, epochs, every, show is None)
        self.signals.release()

    def _begin(self, batch, logs):
        if not self.progress.step:
            start_directory(self.output, self.tokenizers, self.settings, self.data.fingerprint)
            self.history.start()

    def _fit(self, callbacks, first_epoch, epochs, steps_per_epoch, is_verbose):
        batches, progress = self.data.batches, self.progress
        ends = keras.callbacks.LambdaCallback(on_train_end=lambda logs: batches.finish_encoding())
        try:
            dataset = batches.dataset(start_step=progress.batch, epoch=progress.epoch)
            self.loss_model.fit(
                dataset.map(LossModel.arrange),
                initial_epoch=first_epoch,
                epochs=epochs,
                steps_per_epoch=steps_per_epoch,
                callbacks=[*callbacks, ends],
                shuffle=False,
                verbose=int(is_verbose and sys.stdout.isatty()),
            )
            self.loop.save()
        except DivergedError as error:
            # The loop may or may not have counted the step before the error.
            back = progress.step + 1 - error.step
            position = (progress.epoch, progress.batch)
            path = save_diverged_batch(self.output, batches, position, back)
            raise UserError(f"{error} The batch of that step is in {str(path)!r}.") from error
        finally:
            batches.finish_encoding()  # An exception has skipped `on_train_end`.

    def _description(self) -> list[str]:
        """Returns two lines about the model, the device and the plan of the run."""
        config, settings = self.model.config, self.settings
        layers = f"{config.num_encoder_layers} + {config.num_decoder_layers} layers"
        epochs = self.total_steps / self.data.steps_per_epoch
        plan = f"Training until step {self.total_steps:,} ({epochs:.1f} epochs)"
        if settings.max_minutes is not None:
            plan += f", or for {settings.max_minutes:g} minutes in total"
        plan += f"; validation every {self.loop.evaluate_every:,} steps"
        if settings.patience is not None:
            plan += f", and an end after {settings.patience} of them without gain"
        return [
            f"Model {settings.start_from or settings.preset}: {layers}, "
            f"d_model {config.d_model:,}, {self.model.count_params():,} parameters, "
            f"on {_devices(self.model)}.",
            f"{plan}. The first step takes longer than the others.",
        ]

    def finish(self) -> TrainingResult:
        """Chooses the final weights and writes the model directory."""
        self.loop.complete()
        score, text = None, f"{self.task.score_label} {{:.2f}}".format
        if self.score is not None:
            score = self.score.evaluate
        elif self.data.valid_batches is not None:
            score, text = (lambda: -self._valid_loss()), lambda x: f"validation loss {-x:.3f}"
        chooses = self.settings.select_best
        best = choose_final_weights(self, score if chooses else None, text)
        if not chooses and self.score is not None:
            best = score()
        valid_loss = None if self.data.valid_batches is None else self._valid_loss()
        result = self.task.make_result(
            self.model, self.tokenizers, self.settings, self.recipe, self.data.sentence_profile
        )
        result.save(self.output)
        return TrainingResult(
            task=self.task.name,
            pipeline=result,
            score=None if self.score is None else best,
            steps=self.progress.step,
            epochs=self.progress.epoch + self.progress.batch / self.data.steps_per_epoch,
            minutes=self.progress.minutes,
            valid_loss=valid_loss,
            history=self.history.rows(),
        )

    def _valid_loss(self) -> float:
        return self.evaluator(self.data.valid_batches).loss


def _devices(model) -> str:
    kind, count = "CPU", num_replicas(model)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        kind = "GPU" if tf.config.list_physical_devices("GPU") else kind
    return f"{count} {kind}s" if count > 1 else f"one {kind}" if kind == "GPU" else "the CPU"
