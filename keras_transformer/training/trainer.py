"""The `train` function, from two corpora to a model directory, and its loop."""

import contextlib
import dataclasses
import logging
import math
import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras

from keras_transformer.data import EncodedCorpus
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.errors import NO_ROOM, StoppedBySignal, StopSignals, UserError
from keras_transformer.inference.tasks import get_task
from keras_transformer.settings.training_settings import TrainingSettings
from keras_transformer.training.callbacks import (
    RoundCallbacks,
    StepProgress,
    StopOnNonFiniteLoss,
    TensorBoardLog,
    first_signal,
)
from keras_transformer.training.checkpoints import shared_lock, step_of
from keras_transformer.training.distribution import (
    make_distribution,
    mirrored_strategy,
    strategy_scope,
)
from keras_transformer.training.evaluations import Evaluations
from keras_transformer.training.plan import make_plan
from keras_transformer.training.processes import process_group
from keras_transformer.training.state import TrainingState

_LOGGER = logging.getLogger(__name__)
# Nats per token: guessing costs the logarithm of the vocabulary size, about 10.
_EXPLODED_LOSS = 100.0


@dataclasses.dataclass(frozen=True)
class TrainingResult:
    """The result of a call of `train`.

    Attributes:
        task: Name of the task.
        pipeline: `Translator` or `Parser` with the final weights, as saved in the directory.
        score: BLEU or F1 of the final weights on the validation set, or None.
        steps, epochs, minutes: Updates, passes over the data, and time of training in all runs.
        valid_loss: Cross-entropy per token of the final weights on the validation set, or None.
        history: Rows of `history.csv`.

    Example:

    >>> values = dict(score=31.4, steps=100, epochs=1.5, minutes=2.0, valid_loss=1.8, history=[])
    >>> result = keras_transformer.training.TrainingResult("translation", None, **values)
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

    @property
    def translator(self) -> Any:
        """The `Translator` of a translation, otherwise None."""
        return self.pipeline if self.task == "translation" else None

    @property
    def bleu(self) -> float | None:
        """The BLEU of a translation, otherwise None."""
        return self.score if self.task == "translation" else None

    @property
    def parser(self) -> Any:
        """The `Parser` of a parsing task, otherwise None."""
        return self.pipeline if self.task == "parsing" else None

    @property
    def f1(self) -> float | None:
        """The F1 of a parsing task, otherwise None."""
        return self.score if self.task == "parsing" else None


def train(
    output: str | Path,
    train_corpus: Iterable | EncodedCorpus,
    valid_corpus: Iterable | None = None,
    settings: TrainingSettings | None = None,
    source_tokenizer: Tokenizer | None = None,
    target_tokenizer: Tokenizer | None = None,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    report: Callable[[str], object] = _LOGGER.info,
    progress: Callable[[int, int | None, str], object] | None = None,
    also_valid: Mapping[str, Iterable] | None = None,
) -> TrainingResult:
    """Trains a Transformer and writes its model directory.

    `Translator.load` reads the directory, or `Parser.load` with `TrainingSettings(task="parsing")`.
    It also contains `training.json` with the settings, `history.csv`, and `checkpoints/`. Called
    again with the same settings and data, `train` resumes an interrupted training from its last
    checkpoint, and continues a finished one if the settings now allow more steps or minutes.
    Nothing is written before the first step is done. On Ctrl-C, SIGTERM or SIGHUP, the step is
    finished and a checkpoint is written; a second signal ends the training at once.

    Args:
        output: Path of the model directory.
        train_corpus: Yields pairs of `str` (source, target) each time it is iterated over, such as
            a `ParallelTextCorpus`; or an `EncodedCorpus`, together with the tokenizers that encoded
            it. For parsing, a `TreebankCorpus`.
        valid_corpus: The same for evaluations and the choice of the final weights. If None, the
            average of the last checkpoints is final. Never use the test set.
        settings: `TrainingSettings`; None for the defaults.
        source_tokenizer, target_tokenizer: Tokenizers to use; if both are None, they are learned as
            the settings say. The first alone serves both languages, but not the trees of a parser.
        callbacks: Further Keras callbacks, whose epochs end at evaluations. With several processes
            they are called in each, and write files in process 0 only
            (`process_group().is_first`).
        report: Called with lines of text about the data, every evaluation and the final choice.
        progress: Called before the first step and after each with (steps done, total steps or
            None, note).
        also_valid: Further validation corpora by name, such as one of the text that a model to
            start from learned: their figures are reported and in the history, and choose nothing.

    Returns:
        `TrainingResult`.

    Raises:
        UserError: If the directory holds another training or files of something else, or is in
            use, the data is unusable, devices are missing, the global dtype policy is float16 or
            mixed_float16, or the loss diverges.
        ValueError: If a preset, or a field of its config or recipe, is unknown or wrong, or only
            `target_tokenizer` is given, or `also_valid` without `valid_corpus` or with the name
            `"train"` or `"valid"`.
        KeyboardInterrupt: On Ctrl-C, SIGTERM or SIGHUP, with a message about the checkpoint.

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
    settings, output, group = settings or TrainingSettings(), Path(output), process_group()
    if target_tokenizer is not None and source_tokenizer is None:
        raise ValueError("`target_tokenizer` needs `source_tokenizer`. Received: None")
    valid_corpora, task = _valid_corpora(valid_corpus, also_valid or {}), get_task(settings.task)
    settings = task.check_settings(settings)
    _check_policy(settings)
    for corpus in (train_corpus, *valid_corpora.values()):
        task.check(corpus, settings)
    strategy = _strategy(settings)
    if not group.is_first:
        report, progress = lambda line: None, None
    scope = strategy if keras.backend.backend() == "jax" else None
    with shared_lock(output), StopSignals(report) as signals, strategy_scope(scope):
        given = source_tokenizer, target_tokenizer
        plan = make_plan(output, train_corpus, valid_corpora, settings, given, report)
        state = TrainingState(plan, strategy, report)
        try:
            return _train(plan, state, signals, callbacks, report, progress)
        except KeyboardInterrupt as interrupt:
            number = getattr(interrupt, "signal_number", signal.SIGINT)
            raise StoppedBySignal(number, _interruption(state)) from None
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            text = f"{error.strerror}: {str(output)!r}: {_interruption(state)}"
            raise UserError(text) from error
        finally:
            plan.data.batches.finish_encoding()


def _train(plan, state, signals, callbacks, report, report_progress) -> TrainingResult:
    """Trains round after round, until the plan has no other or something stops it."""
    progress, group = state.progress, process_group()
    board = _tensorboard(plan) if group.is_first else None
    evaluations = Evaluations(plan, state, board, report)
    callbacks = _round_callbacks(plan, state, signals, board, callbacks, report_progress)
    if progress.step:
        report(f"Resuming after step {progress.step:,}, {progress.minutes:.1f} minutes.")
    state.checkpoints.check_room(state.model)
    if progress.unfinished_row:
        _evaluate(state, evaluations, signals)
    start_row = None
    if plan.next_round(progress):
        for line in plan.introduction(state.model.transformer):
            report(line)
        if plan.start is not None and not progress.step and plan.scores:
            start_row = evaluations.start()
    while planned := plan.next_round(progress):
        done = state.fit(planned, callbacks)
        if start_row is not None:
            evaluations.write(start_row)
            start_row = None
        if done.saves:
            state.save_weights()
        if done.evaluates:
            progress.unfinished_row = state.training_row()
        if done.saves or done.evaluates or callbacks.signal is not None:
            state.save()
        if callbacks.signal is not None:
            break
        if done.evaluates:
            _evaluate(state, evaluations, signals)
        if state.model.stop_training:
            break
    callbacks.finish()
    # All processes end if one has received a signal since its last step.
    signals.received = first_signal(group.gather(signals.received))
    signals.release()
    _complete(state, evaluations, signals)
    _report_end(plan, progress, report)
    return _finish(plan, state, evaluations)


def _evaluate(state, evaluations, signals):
    """Evaluates the weights, whose unfinished row is saved already, and saves the outcome."""
    is_alone = process_group().num_processes == 1  # Others would wait for the share of this one.
    with signals.at_once() if is_alone else contextlib.nullcontext():
        evaluations.record(dict(state.progress.unfinished_row))
    state.progress.unfinished_row = None
    state.save()  # A run that resumes here does not repeat the evaluation.


def _complete(state, evaluations, signals):
    """Saves and evaluates the weights of the last step, unless that was done before."""
    step, files = state.progress.step, state.weight_files()
    if not step or (files and step_of(files[-1]) == step):
        return
    state.save_weights()
    rows = process_group().in_first(state.history.rows)
    if not rows or rows[-1]["step"] != str(step):
        state.progress.unfinished_row = state.training_row()
        _evaluate(state, evaluations, signals)


def _round_callbacks(plan, state, signals, board, callbacks, report_progress):
    """Returns the callbacks of the training, those of the user last."""
    stop = StopOnNonFiniteLoss(every=1, limit=_EXPLODED_LOSS)
    all_callbacks = [state.clock, stop] if board is None else [board, state.clock, stop]
    if report_progress is not None:
        tokens_per_step = plan.data.tokens_per_step
        all_callbacks.append(StepProgress(report_progress, plan.max_steps, tokens_per_step))
    verbose = int(report_progress is None and process_group().is_first and sys.stdout.isatty())
    return RoundCallbacks(
        [*all_callbacks, *callbacks],
        state.model,
        signals,
        process_group(),
        plan.data.batches.finish_encoding,
        add_progbar=bool(verbose),
        verbose=verbose,
        epochs=math.ceil(plan.max_steps / plan.evaluate_every),
        steps=plan.evaluate_every,
    )


def _tensorboard(plan):
    if not plan.settings.tensorboard:
        return None
    padding = plan.data.batches.padding_share(0)
    return TensorBoardLog(plan.output / "tensorboard", plan.data.tokens_per_step, padding)


def _report_end(plan, progress, report):
    """Reports why the training ends, and what the last validations say about more steps.

    It reports nothing if the plan has no reason, so a callback stopped the training.
    """
    if reason := plan.reason_to_end(progress):
        number = progress.without_gain
        if progress.step < (warmup := plan.recipe.warmup_steps):
            reason += f" It learned little: the learning rate rises until step {warmup:,}."
        elif progress.evaluations > 1 and not number:
            reason += " The validation was still improving."
        elif progress.evaluations > 1:
            last = "validation" if number == 1 else f"{number} validations"
            score = plan.scores.get("valid")
            scored = score is not None and number >= score.every  # at least one of them
            gain = "improved neither loss nor score" if scored else "did not improve the loss"
            reason += f" The last {last} {gain}."
        report(f"The training ends: {reason}")


def _interruption(state):
    """Returns a message for an interruption: the checkpoint that the next run continues."""
    if not state.saved_step:
        return "interrupted before the first checkpoint; the next run starts from the beginning"
    try:
        step = int(state.model.optimizer.iterations.numpy())
    except TypeError:  # While JAX computes a step, the variables have no values.
        step = state.progress.step
    return (
        f"interrupted after step {step:,}; the checkpoint of step {state.saved_step:,} is in "
        f"{str(state.checkpoints.directory)!r}, and the next run goes on from there"
    )


def _finish(plan, state, evaluations) -> TrainingResult:
    """Chooses the final weights and writes the model directory."""
    score = evaluations.choose_final_weights()
    valid_loss = evaluations.loss()
    used: dict = {"max_steps": plan.max_steps, "average_checkpoints": plan.average_windows[0]}
    recipe = dataclasses.replace(plan.recipe, **used)
    pipeline = plan.task.make_result(
        state.model.transformer,
        plan.tokenizers,
        plan.settings,
        recipe,
        plan.sentence_profile,
        plan.start and plan.start.config,
    )
    process_group().in_first(pipeline.save, plan.output)
    progress = state.progress
    return TrainingResult(
        task=plan.settings.task,
        pipeline=pipeline,
        score=score,
        steps=progress.step,
        epochs=progress.epoch + progress.batch / plan.data.steps_per_epoch,
        minutes=progress.minutes,
        valid_loss=valid_loss,
        history=state.history.rows(),
    )


def _valid_corpora(valid_corpus, also_valid):
    """Returns the validation corpora by name; "valid", the first, decides the final weights."""
    if also_valid.keys() & {"train", "valid"} or (also_valid and valid_corpus is None):
        rule = "`also_valid` has names other than 'train' and 'valid', and needs `valid_corpus`"
        raise ValueError(f"{rule}. Received: {', '.join(also_valid)}")
    return {} if valid_corpus is None else {"valid": valid_corpus, **also_valid}


def _check_policy(settings):
    policy = keras.config.dtype_policy()
    if policy.compute_dtype == "float16" and not settings.mixed_precision:
        # A step whose gradient overflows would not be counted, but its batch would.
        rule = "`train` computes in float32, or in bfloat16 with `mixed_precision`"
        raise UserError(f"{rule}. Received: the global dtype policy {policy.name!r}")


def _strategy(settings):
    """Returns what trains on the devices of the settings; None on a single device."""
    backend, gpus, parallel = keras.backend.backend(), settings.gpus or 1, settings.model_parallel
    if backend != "tensorflow" and max(settings.micro_batches, settings.streams) > 1:
        received = f"micro_batches={settings.micro_batches}, streams={settings.streams}, {backend=}"
        raise UserError(f"Steps in parts need the TensorFlow backend. Received: {received}")
    if backend != "tensorflow" and settings.deterministic:
        raise UserError(f"`deterministic` needs the TensorFlow backend. Received: {backend=}")
    if backend == "jax":
        return make_distribution(gpus, parallel)
    if parallel > 1:
        rule = "`model_parallel` needs the JAX backend"
        raise UserError(f"{rule}. Received: model_parallel={parallel}, {backend=}")
    return mirrored_strategy(gpus) if gpus > 1 else None
