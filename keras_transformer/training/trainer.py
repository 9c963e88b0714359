"""`train`: from two corpora to a model directory, interrupted and resumed at will."""

import logging
import math
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import keras

from keras_transformer.data.tokenizer_pair import TokenizerPair
from keras_transformer.errors import NO_ROOM, StoppedBySignal, StopSignals, UserError
from keras_transformer.inference.tasks import get_task
from keras_transformer.models import TrainingRecipe, Transformer, get_preset
from keras_transformer.settings.training_settings import TrainingSettings
from keras_transformer.training.callbacks import HistoryFile, StepProgress, TimeLimit
from keras_transformer.training.checkpoints import Checkpoints
from keras_transformer.training.distribution import (
    enable_determinism,
    mirrored_strategy,
    strategy_scope,
)
from keras_transformer.training.divergence import (
    DivergedError,
    StopOnNonFiniteLoss,
    save_diverged_batch,
)
from keras_transformer.training.evaluation_loop import EvaluationLoop, Progress, history_columns
from keras_transformer.training.final_weights import choose_final_weights
from keras_transformer.training.loss_model import LossModel
from keras_transformer.training.metrics import TokenEvaluator
from keras_transformer.training.optimizer import compile_model
from keras_transformer.training.run_description import describe_run
from keras_transformer.training.tensorboard_log import TENSORBOARD_FOLDER, TensorBoardLog
from keras_transformer.training.training_data import TrainingData
from keras_transformer.training.training_lock import training_lock
from keras_transformer.training.training_result import TrainingResult
from keras_transformer.training.training_setup import (
    CHECKPOINT_FOLDER,
    HISTORY_FILE,
    check_lengths,
    check_output,
    choose_tokenizers,
    make_config,
    start_directory,
)

# Nats per token: guessing costs the logarithm of the vocabulary's size, about 10.
_EXPLODED_LOSS = 100.0

_LOGGER = logging.getLogger(__name__)


def train(
    output,
    train_corpus,
    valid_corpus=None,
    settings: TrainingSettings | None = None,
    source_tokenizer=None,
    target_tokenizer=None,
    callbacks=(),
    report: Callable[[str], object] = _LOGGER.info,
    progress: Callable[[int, int | None, str], object] | None = None,
) -> TrainingResult:
    """Trains a Transformer and writes its model directory.

    The directory has what `Translator.load` reads, or, of `TrainingSettings(task="parsing")`,
    `Parser.load` (config, weights, tokenizers, recipe), and
    `training.json` with the settings, `history.csv`, and `checkpoints/`. Called again with the
    same settings and data, a training that was interrupted goes on from its last checkpoint, and
    one that is finished goes on if there are more steps or minutes now. Nothing is written before
    the first step is done. Ctrl-C, SIGTERM and SIGHUP finish the step and write a checkpoint; the
    second signal ends the training at once.

    Args:
        output: path of the model directory.
        train_corpus: yields pairs of `str` (source, target), as often as asked, e.g. a
            `ParallelTextCorpus`; or an `EncodedCorpus`, with the tokenizers it was encoded with.
            For parsing, a `TreebankCorpus`.
        valid_corpus: likewise, for evaluations and the choice of the final weights; None: the
            average of the last checkpoints is final. Never the test set.
        settings: `TrainingSettings`; None for the defaults.
        source_tokenizer: tokenizer to use; None learns one, as the settings say.
        target_tokenizer: tokenizer of the target; None if both share `source_tokenizer`, or, for
            parsing, to learn it.
        callbacks: further Keras callbacks.
        report: called with lines for people: the data, every evaluation, the final choice.
        progress: called before the first step and after each with (steps done, steps in all or
            None, note).

    Returns:
        `TrainingResult`.

    Raises:
        UserError: if the directory holds another training or files of something else, or is in
            use, the data is unusable, the devices are not there, or the loss diverges.
        ValueError: if a preset, or a field of its config or recipe, is unknown or wrong.
        KeyboardInterrupt: on Ctrl-C, SIGTERM or SIGHUP, with a message about the checkpoint.

    Example:

    >>> import tempfile
    >>> from keras_transformer.data import PairsCorpus
    >>> from keras_transformer.training import TrainingSettings, train
    >>> corpus = PairsCorpus([("a b", "b a"), ("b", "b")])
    >>> settings = TrainingSettings(
    ...     preset="tiny", tokenizer="subword", max_steps=1, recipe={"tokens_per_batch": 64})
    >>> train(tempfile.mkdtemp() + "/model", corpus, corpus, settings).steps
    1
    """
    settings = settings or TrainingSettings()
    corpora = train_corpus, valid_corpus
    for corpus in corpora:
        if corpus is not None:
            get_task(settings.task).check(corpus, settings)
    output = Path(output)
    tokenizers = source_tokenizer, target_tokenizer
    with training_lock(output), StopSignals(report) as signals:
        run = _start(output, corpora, settings, tokenizers, report, signals)
        try:
            run.fit(list(callbacks), progress)
            return run.finish()
        except KeyboardInterrupt as interrupt:
            number = getattr(interrupt, "signal_number", signal.SIGINT)
            raise StoppedBySignal(number, run.checkpoint_text()) from None
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            text = f"{error.strerror}: {str(output)!r}: {run.checkpoint_text()}"
            raise UserError(text) from error


def _start(output: Path, corpora, settings, given_tokenizers, report, signals) -> "_Run":
    """Reads the data and builds the model; writes nothing."""
    train_corpus, valid_corpus = corpora
    task = get_task(settings.task)
    preset = get_preset(settings.preset)
    recipe = TrainingRecipe.from_dict({**preset.recipe.to_dict(), **settings.recipe})
    strategy = mirrored_strategy(settings.gpus) if (settings.gpus or 1) > 1 else None
    resumes = check_output(output)
    if resumes:
        # Before the text is read, which may take long.
        reached = Progress.from_dict(Checkpoints(output / CHECKPOINT_FOLDER).metadata() or {})
        if reason := reached.why_it_ends(settings.max_steps or recipe.max_steps, settings):
            report(f"Nothing is left to train: {reason}")
    tokenizers = choose_tokenizers(
        output, resumes, train_corpus, settings, task, *given_tokenizers, report
    )
    config = make_config(preset, settings, *tokenizers.sizes)
    check_lengths(config, recipe)
    data = TrainingData(train_corpus, valid_corpus, tokenizers, settings, recipe, report)
    data.fingerprint |= {"config": config.to_dict(), "train_recipe": recipe.to_dict()}
    if resumes:
        settings.check_resumes(output, data.fingerprint)
    keras.utils.set_random_seed(settings.seed)
    if settings.deterministic:
        enable_determinism()
    with strategy_scope(strategy):
        policy = "mixed_bfloat16" if settings.mixed_precision else None
        packed = settings.packed_width is not None
        model = LossModel(Transformer(config, dtype=policy), recipe.label_smoothing, packed=packed)
        model.micro_batches = settings.micro_batches
        compile_model(model, recipe, jit_compile=settings.jit_compile)
    score = None
    if valid_corpus is not None:
        score = task.make_score(valid_corpus, tokenizers, settings, recipe)
    return _Run(output, model, tokenizers, data, settings, recipe, score, report, signals)


class _Run:
    """One call of `train`, after the data is read and the model built."""

    def __init__(
        self,
        output,
        loss_model,
        tokenizers: TokenizerPair,
        data,
        settings,
        recipe,
        score,
        report,
        signals: StopSignals,
    ):
        self.output = output
        self.loss_model = loss_model
        self.model = loss_model.transformer
        self.tokenizers = tokenizers
        self.data = data
        self.settings = settings
        self.recipe = recipe
        self.score = score
        self.report = report
        self.signals = signals
        self.task = get_task(settings.task)
        self.windows = settings.average_windows or (recipe.average_checkpoints,)
        keep = max(settings.keep_checkpoints or 1, *self.windows)
        self.checkpoints = Checkpoints(output / CHECKPOINT_FOLDER, keep)
        self.history = HistoryFile(output / HISTORY_FILE, history_columns(self.task.score_name))
        self.total_steps = settings.max_steps or recipe.max_steps
        self.reached = Progress.from_dict(self.checkpoints.restore_state(loss_model) or {})
        if self.reached.step:
            # An evaluation that was broken off is done again: its row, if written, goes.
            self.history.start(self.reached.step - bool(self.reached.unfinished_row))
        self.time_limit = TimeLimit(settings.max_minutes, self.reached.minutes)
        self.evaluator = TokenEvaluator(self.model)
        if score is not None:
            score.set_model(self.model)
        self.board = None
        if settings.tensorboard:
            self.board = TensorBoardLog(
                output / TENSORBOARD_FOLDER, data.tokens_per_step, data.batches.padding_share(0)
            )
        self.loop = EvaluationLoop(
            data,
            settings,
            self.checkpoints,
            self.history,
            self.time_limit,
            self.evaluator,
            score,
            recipe,
            self.reached,
            report,
            signals,
            self.board,
        )

    def checkpoint_text(self) -> str:
        """Returns what is left of a training that is interrupted now."""
        saved = self.loop.saved_step
        if not saved:
            return "interrupted before the first checkpoint; the next run starts from the beginning"
        return (
            f"interrupted after step {self.reached.step:,}; the checkpoint of step {saved:,} is in "
            f"{str(self.checkpoints.directory)!r}, and the next run goes on from there"
        )

    def _begin(self):
        start_directory(self.output, self.tokenizers, self.settings, self.data.fingerprint)
        self.history.start()

    def fit(self, callbacks, progress):
        if self.reached.step:
            self.report(
                f"Resuming after step {self.reached.step:,}, {self.reached.minutes:.1f} minutes."
            )
        self.checkpoints.check_room(self.loss_model)
        self.loop.set_model(self.loss_model)
        self.loop.finish_evaluation()
        if self.reached.why_it_ends(self.total_steps, self.settings):
            return
        for line in describe_run(self.model, self.data, self.settings, self.loop):
            self.report(line)
        # A failed start leaves nothing behind.
        begins = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: self.reached.step or self._begin()
        )
        watchers = [begins, self.time_limit, StopOnNonFiniteLoss(every=1, limit=_EXPLODED_LOSS)]
        if self.board is not None:
            watchers.append(self.board)
        # The loop must see whether the time is up; what it does is no part of the others' times.
        watchers.append(self.loop)
        if progress is not None:
            watchers.append(StepProgress(progress, self.total_steps, self.data.tokens_per_step))
        # Keras' mean of the loss begins anew with each of its epochs. These end at evaluations, so
        # that one resumed in between has a shorter first one.
        every = self.loop.evaluate_every
        started = self.reached.step // every
        if steps := self.reached.step % every:
            self._fit([*watchers, *callbacks], started, started + 1, every - steps, progress)
            started += 1
        if not self.loss_model.stop_training and self.reached.step < self.total_steps:
            epochs = math.ceil(self.total_steps / every)
            self._fit([*watchers, *callbacks], started, epochs, every, progress)
        self.signals.release()

    def _fit(self, callbacks, first_epoch, epochs, steps_per_epoch, progress):
        batches = self.data.batches
        ends = keras.callbacks.LambdaCallback(on_train_end=lambda logs: batches.finish_encoding())
        try:
            dataset = batches.dataset(start_step=self.reached.batch, epoch=self.reached.epoch)
            self.loss_model.fit(
                dataset.map(LossModel.arrange),
                initial_epoch=first_epoch,
                epochs=epochs,
                steps_per_epoch=steps_per_epoch,
                callbacks=[*callbacks, ends],
                shuffle=False,
                verbose=1 if progress is None and sys.stdout.isatty() else 0,
            )
            self.loop.save()
        except DivergedError as error:
            batches.finish_encoding()
            # The loop may or may not have counted the step when it was seen.
            back = self.reached.step + 1 - error.step
            position = (self.reached.epoch, self.reached.batch)
            path = save_diverged_batch(self.output, batches, position, back)
            raise UserError(f"{error} The batch of that step is in {str(path)!r}.") from error
        except BaseException:
            batches.finish_encoding()
            raise

    def finish(self) -> TrainingResult:
        """Chooses the final weights and writes the model directory."""
        self.loop.complete()
        score, score_text = None, f"{self.task.score_label} {{:.2f}}".format
        if self.score is not None:
            score = self.score.evaluate
        elif self.data.valid_batches is not None:
            score, score_text = self._negative_loss, _loss_text
        chosen = choose_final_weights(
            self.model,
            self.checkpoints,
            self.windows,
            self.loop.best_path,
            score,
            self.report,
            score_text,
        )
        if chosen is None:
            raise UserError("No step was trained: allow more steps or minutes.")
        valid_loss = None
        if self.data.valid_batches is not None:
            valid_loss = -self._negative_loss()
        result = self.task.make_result(
            self.model, self.tokenizers, self.settings, self.recipe, self.data.sentence_profile
        )
        result.save(self.output)
        of_the_task = {
            self.task.result_name: result,
            self.task.score_name: None if self.score is None else chosen.score,
        }
        return TrainingResult(
            **{"translator": None, "bleu": None, **of_the_task},
            steps=self.reached.step,
            epochs=self.reached.epoch + self.reached.batch / self.data.steps_per_epoch,
            minutes=self.reached.minutes,
            valid_loss=valid_loss,
            history=self.history.rows(),
        )

    def _negative_loss(self) -> float:
        return -self.evaluator(self.data.valid_batches).loss


def _loss_text(negative_loss: float) -> str:
    return f"validation loss {-negative_loss:.3f}"
