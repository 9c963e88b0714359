"""The `train` function, from two corpora to a model directory."""

import contextlib
import dataclasses
import logging
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras

from keras_transformer.data import EncodedCorpus
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.errors import NO_ROOM, StoppedBySignal, UserError
from keras_transformer.inference.tasks import get_task
from keras_transformer.layouts import LOCK_FILE
from keras_transformer.settings.training_settings import TrainingSettings
from keras_transformer.signals import StopSignals
from keras_transformer.training.distribution import (
    make_distribution,
    mirrored_strategy,
    strategy_scope,
)
from keras_transformer.training.evaluations import Evaluations
from keras_transformer.training.output_directory import training_lock
from keras_transformer.training.processes import process_group
from keras_transformer.training.training_loop import TrainingLoop
from keras_transformer.training.training_run import TrainingRun, start_run

_LOGGER = logging.getLogger(__name__)
_SECONDS_TO_SEE = 30  # a file that another machine has written


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
        callbacks: Further Keras callbacks. With several processes they are called in each, must
            stop alike, and write files in process 0 only (`process_group().is_first`).
        report: Called with lines of text about the data, every evaluation and the final choice.
        progress: Called before the first step and after each with (steps done, total steps or
            None, note).
        also_valid: Further validation corpora by name, such as one of the text that a model to
            start from learned: their figures are reported and in the history, and choose nothing.

    Returns:
        `TrainingResult`.

    Raises:
        UserError: If the directory holds another training or files of something else, or is in
            use, the data is unusable, devices are missing, or the loss diverges.
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
    settings, output = settings or TrainingSettings(), Path(output)
    settings = get_task(settings.task).check_settings(settings)
    corpora, tokenizers = (train_corpus, valid_corpus), (source_tokenizer, target_tokenizer)
    also_valid = dict(also_valid or {})
    if also_valid.keys() & {"train", "valid"} or (also_valid and valid_corpus is None):
        rule = "`also_valid` has names other than 'train' and 'valid', and needs `valid_corpus`"
        raise ValueError(f"{rule}. Received: {', '.join(also_valid)}")
    for corpus in (*corpora, *also_valid.values()):
        if corpus is not None:
            get_task(settings.task).check(corpus, settings)
    group, strategy = process_group(), _strategy(settings)
    if not group.is_first:
        report, progress = lambda line: None, None
    scope = strategy if keras.backend.backend() == "jax" else None
    with _shared_lock(output, group), StopSignals(report) as signals, strategy_scope(scope):
        run = start_run(output, (*corpora, also_valid), settings, tokenizers, report, strategy)
        evaluations = Evaluations(run)
        loop = TrainingLoop(run, evaluations, signals)
        try:
            loop.fit(callbacks, progress)
            loop.complete()
            return _finish(run, evaluations)
        except KeyboardInterrupt as interrupt:
            number = getattr(interrupt, "signal_number", signal.SIGINT)
            raise StoppedBySignal(number, loop.interruption()) from None
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            text = f"{error.strerror}: {str(output)!r}: {loop.interruption()}"
            raise UserError(text) from error


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


@contextlib.contextmanager
def _shared_lock(output, group):
    """Locks the directory in process 0, for all processes; checks that the others see it."""
    with training_lock(output) if group.is_first else contextlib.nullcontext():
        holder = group.in_first(_lock_holder, output)
        seen = group.gather(group.is_first or _sees_lock(output, holder))
        if not all(seen):
            raise UserError(
                "All processes need the output directory of process 0, on a shared disk. Received: "
                f"{str(output)!r}, which process {seen.index(False)} does not see"
            )
        yield


def _lock_holder(output):
    with contextlib.suppress(OSError):
        return (output / LOCK_FILE).read_text("utf-8")


def _sees_lock(output, holder):
    deadline = time.monotonic() + _SECONDS_TO_SEE
    while _lock_holder(output) != holder and time.monotonic() < deadline:
        time.sleep(0.1)
    return _lock_holder(output) == holder


def _finish(run: TrainingRun, evaluations: Evaluations) -> TrainingResult:
    """Chooses the final weights and writes the model directory."""
    score = evaluations.choose_final_weights()
    valid_loss = evaluations.loss()
    used: dict = {"max_steps": run.max_steps, "average_checkpoints": run.windows[0]}
    recipe = dataclasses.replace(run.recipe, **used)
    pipeline = run.task.make_result(
        run.model.transformer, run.tokenizers, run.settings, recipe, run.data.sentence_profile
    )
    run.group.in_first(pipeline.save, run.output)
    return TrainingResult(
        task=run.settings.task,
        pipeline=pipeline,
        score=score,
        steps=run.progress.step,
        epochs=run.progress.epoch + run.progress.batch / run.data.steps_per_epoch,
        minutes=run.progress.minutes,
        valid_loss=valid_loss,
        history=run.history.rows(),
    )
