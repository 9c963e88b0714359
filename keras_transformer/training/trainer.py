"""The `train` function, from two corpora to a model directory."""

import dataclasses
import logging
import signal
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import keras

from keras_transformer.data import EncodedCorpus
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.errors import NO_ROOM, StoppedBySignal, StopSignals, UserError, one_line
from keras_transformer.inference.model_directory import (
    check_sizes,
    read_config,
    read_model,
    read_tokenizers,
)
from keras_transformer.inference.tasks import get_task
from keras_transformer.models import TrainingRecipe, Transformer, TransformerConfig, get_preset
from keras_transformer.settings.training_settings import TrainingSettings
from keras_transformer.training.checkpoints import Checkpoints, Progress
from keras_transformer.training.distribution import mirrored_strategy, strategy_scope
from keras_transformer.training.loss_model import LossModel, compile_model
from keras_transformer.training.output_directory import (
    CHECKPOINT_FOLDER,
    check_output,
    training_lock,
)
from keras_transformer.training.training_data import TrainingData, choose_tokenizers
from keras_transformer.training.training_run import TrainingResult, TrainingRun

_LOGGER = logging.getLogger(__name__)


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


def _start(output: Path, corpora, settings, given_tokenizers, report, signals) -> TrainingRun:
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
    tokenizers = choose_tokenizers(
        output, resumes, train_corpus, settings, task, *given_tokenizers, report
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
    return TrainingRun(output, settings, recipe, tokenizers, data, model, score, report, signals)


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
    return [one and one._file_content() for one in tokenizers]


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
