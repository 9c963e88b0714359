"""`train`: from two corpora to a model directory, interrupted and resumed at will."""

import dataclasses
import logging
import math
import sys
from collections.abc import Callable
from pathlib import Path

import keras

from keras_transformer.decoding import BeamSearch, GreedySearch
from keras_transformer.errors import UserError
from keras_transformer.models import TrainingRecipe, Transformer, TransformerConfig, get_preset
from keras_transformer.training.callbacks import (
    BleuOnDev,
    HistoryFile,
    StepProgress,
    StopOnNonFiniteLoss,
    TimeLimit,
)
from keras_transformer.training.checkpoints import Checkpoints, without_optimizer
from keras_transformer.training.distribution import mirrored_strategy, strategy_scope
from keras_transformer.training.evaluate_tokens import evaluate_tokens
from keras_transformer.training.evaluation_loop import HISTORY_COLUMNS, EvaluationLoop, Progress
from keras_transformer.training.final_weights import choose_final_weights
from keras_transformer.training.optimizer import compile_model
from keras_transformer.training.settings import SETTINGS_FILE, TrainingSettings
from keras_transformer.training.training_data import (
    Tokenizers,
    TrainingData,
    load_tokenizers,
    make_tokenizers,
)

HISTORY_FILE = "history.csv"
CHECKPOINT_FOLDER = "checkpoints"

_LOGGER = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class TrainingResult:
    """What a call of `train` ended with.

    Attributes:
        translator: `Translator` with the final weights, as saved in the directory.
        steps: updates done, over all runs.
        epochs: passes over the data, over all runs.
        minutes: minutes of training, over all runs.
        bleu: BLEU of the final weights on the development set, or None.
        valid_loss: cross-entropy per token of the final weights there, or None.
        history: rows of `history.csv`.
    """

    translator: object
    steps: int
    epochs: float
    minutes: float
    bleu: float | None
    valid_loss: float | None
    history: list[dict[str, str]]


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

    The directory has what `Translator.load` reads (config, weights, tokenizers, recipe), and
    `training.json` with the settings, `history.csv`, and `checkpoints/`. Called again with the
    same settings and data, a training that was interrupted goes on from its last checkpoint, and
    one that is finished goes on if there are more steps or minutes now.

    Args:
        output: path of the model directory.
        train_corpus: yields pairs of `str` (source, target), as often as asked, e.g. a
            `ParallelTextCorpus`.
        valid_corpus: likewise, for evaluations and the choice of the final weights; None: the
            average of the last checkpoints is final. Never the test set.
        settings: `TrainingSettings`; None for the defaults.
        source_tokenizer: tokenizer to use; None learns one, as the settings say.
        target_tokenizer: tokenizer of the target; None if both share `source_tokenizer`.
        callbacks: further Keras callbacks.
        report: called with lines for people: the data, every evaluation, the final choice.
        progress: called after every step with (steps done, steps in all or None, note).

    Returns:
        `TrainingResult`.

    Raises:
        UserError: if the directory holds another training, the data is unusable, the devices are
            not there, or the loss diverges.
        ValueError: if a preset, or a field of its config or recipe, is unknown or wrong.

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
    output = Path(output)
    preset = get_preset(settings.preset)
    recipe = TrainingRecipe.from_dict({**preset.recipe.to_dict(), **settings.recipe})
    strategy = mirrored_strategy(settings.gpus) if (settings.gpus or 1) > 1 else None
    resumes = _check_output(output)
    tokenizers = _tokenizers(
        output, resumes, train_corpus, settings, source_tokenizer, target_tokenizer
    )
    data = TrainingData(train_corpus, valid_corpus, tokenizers, settings, recipe, report)
    config = _config(preset, settings, tokenizers)
    fingerprint = {**data.fingerprint, "config": config.to_dict(), "train_recipe": recipe.to_dict()}
    if resumes:
        settings.check_resumes(output, fingerprint)
    else:
        output.mkdir(parents=True, exist_ok=True)
        tokenizers.save(output)
        settings.save(output, fingerprint)
    keras.utils.set_random_seed(settings.seed)
    with strategy_scope(strategy):
        policy = "mixed_bfloat16" if settings.mixed_precision else None
        model = compile_model(
            Transformer(config, dtype=policy), recipe, jit_compile=settings.jit_compile
        )
    run = _Run(output, model, tokenizers, data, settings, recipe, report)
    run.fit(list(callbacks), progress)
    return run.finish()


class _Run:
    """One call of `train`, after the data is read and the model built."""

    def __init__(self, output, model, tokenizers: Tokenizers, data, settings, recipe, report):
        self.output = output
        self.model = model
        self.tokenizers = tokenizers
        self.data = data
        self.settings = settings
        self.recipe = recipe
        self.report = report
        self.windows = settings.average_windows or (recipe.average_checkpoints,)
        keep = settings.keep_checkpoints or max(self.windows)
        self.checkpoints = Checkpoints(output / CHECKPOINT_FOLDER, keep)
        self.history = HistoryFile(output / HISTORY_FILE, HISTORY_COLUMNS)
        self.total_steps = settings.max_steps or recipe.max_steps
        self.reached = Progress(**(self.checkpoints.restore_state(model) or {}))
        self.history.start(self.reached.step)
        self.time_limit = TimeLimit(settings.max_minutes, self.reached.minutes)
        self.bleu = self._bleu() if settings.bleu_every and data.valid_sources else None
        self.loop = EvaluationLoop(
            data,
            settings,
            self.checkpoints,
            self.history,
            self.time_limit,
            self.bleu,
            self.windows[0],
            self.total_steps,
            self.reached,
            report,
        )

    def fit(self, callbacks, progress):
        limit = self.settings.max_minutes
        if self.reached.step:
            self.report(
                f"Resuming after step {self.reached.step:,}, {self.reached.minutes:.1f} minutes."
            )
        if self.reached.step >= self.total_steps or (
            limit is not None and self.reached.minutes >= limit
        ):
            self.report("Nothing is left to train; allow more steps or minutes to go on.")
            return
        every = self.loop.evaluate_every
        watchers = [self.time_limit, StopOnNonFiniteLoss(), self.loop]
        if progress is not None:
            watchers.append(StepProgress(progress, self.total_steps, self.data.tokens_per_step))
        # The order matters: the loop must see whether the time is up, and may not save NaN.
        self.model.fit(
            self.data.batches.dataset(start_step=self.reached.batch, epoch=self.reached.epoch),
            epochs=math.ceil((self.total_steps - self.reached.step) / every),
            steps_per_epoch=every,
            callbacks=[*watchers, *callbacks],
            shuffle=False,
            verbose=1 if progress is None and sys.stdout.isatty() else 0,
        )

    def finish(self) -> TrainingResult:
        """Chooses the final weights and writes the model directory."""
        from keras_transformer.translator import Translator

        score = None
        if self.bleu is not None:
            score = self.bleu.evaluate
        elif self.data.valid_batches is not None:
            score = self._negative_loss
        chosen = choose_final_weights(
            self.model, self.checkpoints, self.windows, self.loop.best_path, score, self.report
        )
        if chosen is None:
            raise UserError("No step was trained: allow more steps or minutes.")
        valid_loss = None
        if self.data.valid_batches is not None:
            valid_loss = evaluate_tokens(self.model, self.data.valid_batches).loss
        search = BeamSearch(self.recipe.beam_size, self.recipe.length_penalty)
        translator = Translator(
            self.model,
            self.tokenizers.source,
            self.tokenizers.target,
            search=search,
            recipe=self.recipe,
        )
        with without_optimizer(self.model):
            translator.save(self.output)
        epochs = self.reached.epoch + self.reached.batch / self.data.steps_per_epoch
        return TrainingResult(
            translator=translator,
            steps=self.reached.step,
            epochs=epochs,
            minutes=self.reached.minutes,
            bleu=None if self.bleu is None else chosen.score,
            valid_loss=valid_loss,
            history=self.history.rows(),
        )

    def _negative_loss(self) -> float:
        return -evaluate_tokens(self.model, self.data.valid_batches).loss

    def _bleu(self) -> BleuOnDev:
        settings, recipe = self.settings, self.recipe
        search = GreedySearch()
        if settings.bleu_beam_size > 1:
            search = BeamSearch(settings.bleu_beam_size, recipe.length_penalty)
        is_subword = settings.tokenizer == "subword"
        bleu = BleuOnDev(
            self.data.valid_sources,
            self.data.valid_references,
            self.tokenizers.source,
            self.tokenizers.target,
            search=search,
            lowercase=settings.bleu_lowercase,
            tokenize=settings.bleu_tokenize or ("none" if is_subword else "13a"),
        )
        bleu.set_model(self.model)
        return bleu


def _check_output(output: Path) -> bool:
    """Returns whether `output` holds a training to resume."""
    if output.exists() and not output.is_dir():
        raise UserError(f"The output must be a directory. Received: output={str(output)!r}")
    if (output / SETTINGS_FILE).exists():
        return True
    if (output / "config.json").exists() or (output / CHECKPOINT_FOLDER).exists():
        raise UserError(
            f"{str(output)!r} holds a model without {SETTINGS_FILE}, which cannot be trained "
            "further. Choose another output directory."
        )
    return False


def _tokenizers(output, resumes, corpus, settings, source, target) -> Tokenizers:
    if source is not None:
        return Tokenizers(source, target)
    if target is not None:
        raise ValueError("`target_tokenizer` needs `source_tokenizer`. Received: None")
    if resumes:
        return load_tokenizers(output, settings.shared_vocabulary)
    return make_tokenizers(corpus, settings)


def _config(preset, settings, tokenizers: Tokenizers) -> TransformerConfig:
    return TransformerConfig.from_dict(
        {
            **preset.config,
            **settings.model,
            "vocab_size": tokenizers.source.vocab_size,
            "target_vocab_size": tokenizers.target.vocab_size if tokenizers.target else None,
        }
    )
