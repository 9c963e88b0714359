"""The `train` function, from two corpora to a model directory."""

import dataclasses
import logging
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras

from keras_transformer.data import EncodedCorpus
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.data.tokenizer_pair import TokenizerPair
from keras_transformer.errors import NO_ROOM, StoppedBySignal, StopSignals, UserError, one_line
from keras_transformer.inference.model_directory import (
    check_sizes,
    read_config,
    read_model,
    read_tokenizers,
)
from keras_transformer.inference.tasks import get_task
from keras_transformer.models import TrainingRecipe, Transformer, TransformerConfig, get_preset
from keras_transformer.models.micro_batches import num_replicas
from keras_transformer.settings.training_settings import TrainingSettings
from keras_transformer.training.callbacks import HistoryFile, StepProgress
from keras_transformer.training.checkpoints import Checkpoints, Progress
from keras_transformer.training.distribution import mirrored_strategy, strategy_scope
from keras_transformer.training.evaluations import Evaluations, history_columns
from keras_transformer.training.loss_model import LossModel, compile_model
from keras_transformer.training.output_directory import (
    CHECKPOINT_FOLDER,
    HISTORY_FILE,
    check_output,
    start_directory,
    training_lock,
)
from keras_transformer.training.score_on_dev import ScoreOnDev
from keras_transformer.training.tensorboard_log import TENSORBOARD_FOLDER, TensorBoardLog
from keras_transformer.training.training_data import TrainingData, choose_tokenizers
from keras_transformer.training.training_loop import TrainingLoop

_LOGGER = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class TrainingResult:
    """The result of a call of `train`.

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
) -> TrainingResult:
    """Trains a Transformer and writes its model directory.

    The directory contains the files that `Translator.load` or, with
    `TrainingSettings(task="parsing")`, `Parser.load` reads (config, weights, tokenizers, recipe).
    It also contains `training.json` with the settings, `history.csv`, and `checkpoints/`. Called
    again with the same settings and data, `train` resumes an interrupted training from its last
    checkpoint, and continues a finished one if the settings now allow more steps or minutes.
    Nothing is written before the first step is done. On Ctrl-C, SIGTERM or SIGHUP, the step is
    finished and a checkpoint is written; a second signal ends the training at once.

    Args:
        output: path of the model directory.
        train_corpus: yields pairs of `str` (source, target) each time it is iterated over, such as
            a `ParallelTextCorpus`; or an `EncodedCorpus`, together with the tokenizers that encoded
            it. For parsing, a `TreebankCorpus`.
        valid_corpus: the same for evaluations and the choice of the final weights. If None, the
            average of the last checkpoints is final. Never use the test set.
        settings: `TrainingSettings`; None for the defaults.
        source_tokenizer, target_tokenizer: tokenizers to use; if both are None, they are learned as
            the settings say. The first alone serves both languages, but not the trees of a parser.
        callbacks: further Keras callbacks.
        report: called with lines of text about the data, every evaluation and the final choice.
        progress: called before the first step and after each with (steps done, total steps or
            None, note).

    Returns:
        `TrainingResult`.

    Raises:
        UserError: if the directory holds another training or files of something else, or is in
            use, the data is unusable, devices are missing, or the loss diverges.
        ValueError: if a preset, or a field of its config or recipe, is unknown or wrong, or only
            `target_tokenizer` is given.
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
        run = _start(output, corpora, settings, tokenizers, report)
        loop = _make_loop(run, signals, report)
        try:
            _fit(run, loop, callbacks, progress)
            return _finish(run, loop)
        except KeyboardInterrupt as interrupt:
            number = getattr(interrupt, "signal_number", signal.SIGINT)
            raise StoppedBySignal(number, loop.interruption()) from None
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            text = f"{error.strerror}: {str(output)!r}: {loop.interruption()}"
            raise UserError(text) from error


class _Run(NamedTuple):
    """What a training is made of."""

    output: Path
    settings: TrainingSettings
    recipe: TrainingRecipe
    tokenizers: TokenizerPair
    data: TrainingData
    model: LossModel
    score: ScoreOnDev | None

    @property
    def max_steps(self) -> int:
        return self.settings.max_steps or self.recipe.max_steps

    @property
    def windows(self) -> tuple[int, ...]:
        """Numbers of last checkpoints to average."""
        return self.settings.average_windows or (self.recipe.average_checkpoints,)


def _start(output: Path, corpora, settings, given_tokenizers, report) -> _Run:
    """Reads the data and builds the model; writes nothing."""
    train_corpus, valid_corpus = corpora
    task = get_task(settings.task)
    recipe = make_recipe(settings)
    strategy = mirrored_strategy(settings.gpus) if (settings.gpus or 1) > 1 else None
    resumes = check_output(output)
    if resumes:
        # Before the text is read, which may take long.
        reached = Progress.from_dict(Checkpoints(output / CHECKPOINT_FOLDER).metadata() or {})
        if reason := reached.why_it_ends(settings.max_steps or recipe.max_steps, settings):
            report(f"Nothing is left to train: {reason}")
    start = None
    if settings.start_from is not None:
        start = _check_start(settings)
        settings = dataclasses.replace(settings, shared_vocabulary=start["shared_tokenizer"])
        own_tokenizers = read_tokenizers(settings.start_from, start)
        if any(given_tokenizers) and _contents(given_tokenizers) != _contents(own_tokenizers):
            raise UserError(
                "`start_from` names a model with its own tokenizers; give no others, and no data "
                "that others encoded."
            )
        given_tokenizers = own_tokenizers
    source, target = given_tokenizers
    tokenizers = choose_tokenizers(
        output, resumes, train_corpus, settings, task, source, target, report
    )
    config = make_config(settings, recipe, *tokenizers.sizes)
    data = TrainingData(train_corpus, valid_corpus, tokenizers, settings, recipe, report)
    data.fingerprint |= {"config": config.to_dict(), "train_recipe": recipe.to_dict()}
    if resumes:
        settings.check_resumes(output, data.fingerprint)
    keras.utils.set_random_seed(settings.seed)
    if settings.deterministic:
        import tensorflow as tf

        tf.config.experimental.enable_op_determinism()
    with strategy_scope(strategy):
        policy = "mixed_bfloat16" if settings.mixed_precision else None
        packed = settings.packed_width is not None
        transformer = Transformer(config, dtype=policy)
        if start is not None and not resumes:
            weights = read_model(settings.start_from, start).get_weights()
            try:
                transformer.set_weights(weights)
            except ValueError as error:
                message = "The settings must not change the weights of the model to start from"
                raise UserError(f"{message}: {one_line(error)}") from error
        model = LossModel(transformer, recipe.label_smoothing, packed=packed, r_drop=recipe.r_drop)
        model.micro_batches = settings.micro_batches
        model.streams = settings.streams
        compile_model(model, recipe, jit_compile=settings.jit_compile)
    score = None
    if valid_corpus is not None:
        score = task.make_score(valid_corpus, tokenizers, settings, recipe)
    if score is not None:
        score.num_streams = settings.streams
    return _Run(output, settings, recipe, tokenizers, data, model, score)


def _make_loop(run: _Run, signals, report) -> TrainingLoop:
    """Returns the loop of a training, which gives the model the weights of a checkpoint."""
    settings = run.settings
    keep = max(settings.keep_checkpoints or 1, *run.windows)
    checkpoints = Checkpoints(run.output / CHECKPOINT_FOLDER, keep)
    columns = history_columns(get_task(settings.task).score_name)
    board = None
    if settings.tensorboard:
        padding = run.data.batches.padding_share(0)
        folder = run.output / TENSORBOARD_FOLDER
        board = TensorBoardLog(folder, run.data.tokens_per_step, padding)
    evaluations = Evaluations(
        run.model.transformer,
        run.data.valid_batches,
        run.score,
        checkpoints,
        run.windows[0],
        HistoryFile(run.output / HISTORY_FILE, columns),
        board,
        report,
    )
    return TrainingLoop(
        run.model,
        run.data,
        settings,
        run.max_steps,
        checkpoints,
        evaluations,
        signals,
        report,
    )


def _fit(run: _Run, loop: TrainingLoop, callbacks, progress) -> None:
    """Trains until a limit of the settings is reached; `callbacks` and `progress` are `train`'s."""

    def begin(batch, logs):
        # A failed start leaves nothing behind.
        if not loop.progress.step:
            start_directory(run.output, run.tokenizers, run.settings, run.data.fingerprint)
            loop.evaluations.history.start()

    before = [keras.callbacks.LambdaCallback(on_train_batch_end=begin)]
    before += filter(None, [loop.evaluations.board])
    after = list(callbacks)
    if progress is not None:
        after.insert(0, StepProgress(progress, run.max_steps, run.data.tokens_per_step))
    is_verbose = progress is None and sys.stdout.isatty()
    loop.fit(before, after, _introduction(run, loop.evaluate_every), int(is_verbose))


def _introduction(run: _Run, evaluate_every: int) -> list[str]:
    """Returns two lines about the model, the device and the plan of the run."""
    settings, model = run.settings, run.model.transformer
    config = model.config
    layers = f"{config.num_encoder_layers} + {config.num_decoder_layers} layers"
    epochs = run.max_steps / run.data.steps_per_epoch
    plan = f"Training until step {run.max_steps:,} ({epochs:.1f} epochs)"
    if settings.max_minutes is not None:
        plan += f", or for {settings.max_minutes:g} minutes in total"
    plan += f"; validation every {evaluate_every:,} steps"
    if settings.patience is not None:
        plan += f", and an end after {settings.patience} of them without gain"
    return [
        f"Model {settings.start_from or settings.preset}: {layers}, d_model {config.d_model:,}, "
        f"{model.count_params():,} parameters, on {_devices(model)}.",
        f"{plan}. The first step takes longer than the others.",
    ]


def _devices(model) -> str:
    kind, count = "CPU", num_replicas(model)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        kind = "GPU" if tf.config.list_physical_devices("GPU") else kind
    return f"{count} {kind}s" if count > 1 else f"one {kind}" if kind == "GPU" else "the CPU"


def _finish(run: _Run, loop: TrainingLoop) -> TrainingResult:
    """Chooses the final weights and writes the model directory."""
    loop.complete()
    evaluations, progress = loop.evaluations, loop.progress
    score = evaluations.choose_final_weights(run.model, run.windows, run.settings.select_best)
    valid_loss = evaluations.loss()
    pipeline = get_task(run.settings.task).make_result(
        run.model.transformer, run.tokenizers, run.settings, run.recipe, run.data.sentence_profile
    )
    pipeline.save(run.output)
    return TrainingResult(
        task=run.settings.task,
        pipeline=pipeline,
        score=None if run.score is None else score,
        steps=progress.step,
        epochs=progress.epoch + progress.batch / run.data.steps_per_epoch,
        minutes=progress.minutes,
        valid_loss=valid_loss,
        history=evaluations.history.rows(),
    )


def _check_start(settings) -> dict:
    """Returns the `config.json` of the model to start from, which must be of the same task."""
    config = read_config(settings.start_from)
    check_sizes(settings.start_from, config)
    for name in ("task", *get_task(settings.task).pipeline.common_settings):
        if config.get(name) != getattr(settings, name):
            rule = f"The model to start from must have the {name} {getattr(settings, name)!r}"
            raise UserError(f"{rule}. Received: {settings.start_from!r} with {config.get(name)!r}")
    return config


def _contents(tokenizers) -> list[bytes | None]:
    return [tokenizer and tokenizer._file_content() for tokenizer in tokenizers]


def make_recipe(settings) -> TrainingRecipe:
    """Returns the recipe of a preset, with the changes of the settings."""
    recipe = get_preset(settings.preset).recipe.to_dict()
    return TrainingRecipe.from_dict({**recipe, **settings.recipe})


def make_config(settings, recipe, vocab_size, target_vocab_size=None) -> TransformerConfig:
    """Returns the config of a preset or of the model to start from, with the settings' changes."""
    sizes = {"vocab_size": vocab_size, "target_vocab_size": target_vocab_size}
    config = get_preset(settings.preset).config
    if settings.start_from is not None:
        config = read_config(settings.start_from)["model"].to_dict()
    config = TransformerConfig.from_dict({**config, **settings.model, **sizes})
    # Equal is enough: the recipe counts EOS, and the decoder's input has BOS in its place.
    if config.max_length is not None and recipe.max_length > config.max_length:
        raise UserError(
            f"The model has {config.max_length} positions, fewer than the {recipe.max_length} "
            "tokens of the longest training sentence (`max_length` of the recipe). Received: "
            f"max_length={recipe.max_length!r} with a config of max_length={config.max_length!r}"
        )
    return config
