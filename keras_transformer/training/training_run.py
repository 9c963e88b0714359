"""`TrainingRun`: the tokenizers, batches, model, score and files of a training."""

import dataclasses
import itertools
import logging
import math
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_transformer import __version__
from keras_transformer.data import EncodedCorpus, TokenBatches
from keras_transformer.data.held_out import HeldOutPairs
from keras_transformer.data.tokenizer_pair import TokenizerPair
from keras_transformer.decoding import BeamSearch, search_to_dict
from keras_transformer.errors import UserError
from keras_transformer.inference.model_directory import read_config, read_recipe
from keras_transformer.inference.sentences import SentenceProfile
from keras_transformer.inference.tasks import get_task
from keras_transformer.layouts import CHECKPOINT_FOLDER, HISTORY_FILE
from keras_transformer.losses import LossModel
from keras_transformer.models import TrainingRecipe, Transformer, TransformerConfig, get_preset
from keras_transformer.settings.training_settings import TrainingSettings, read_settings_file
from keras_transformer.training.callbacks import TensorBoardLog
from keras_transformer.training.checkpoints import Checkpoints, Progress
from keras_transformer.training.compilation import compile_model
from keras_transformer.training.distribution import strategy_scope
from keras_transformer.training.lora import enable_lora
from keras_transformer.training.output_directory import HistoryFile, check_output
from keras_transformer.training.processes import process_group
from keras_transformer.training.starting_model import StartingModel

_LOGGER = logging.getLogger(__name__)
# Peak of the learning rate when a model is adapted, times d_model, and the steps until then.
ADAPTATION_RATE, ADAPTATION_WARMUP = 0.1, 200
_READ_BETWEEN_REPORTS = 1_000_000
_ROW_MULTIPLE = 8
# Number of shapes of the validation batches on JAX, which compiles each.
_COMPILED_SHAPES = 2


class TrainingData:
    """The batches of a training, and a `fingerprint` that must stay the same when it is resumed.

    `valid_corpora` are by name, first the one that chooses; they are not in the fingerprint.
    """

    def __init__(
        self, train_corpus, valid_corpora, tokenizers, settings, recipe, report=_LOGGER.info
    ):
        max_length = recipe.max_length
        if settings.packed_width:
            max_length = min(max_length, settings.packed_width)
        is_encoded = isinstance(train_corpus, EncodedCorpus)

        def encode(corpus, max_length=max_length, **options):
            if isinstance(corpus, EncodedCorpus):
                return corpus.up_to(max_length)
            return EncodedCorpus.from_corpus(corpus, *tokenizers, max_length, **options)

        def encode_epoch(epoch):
            seed, pairs = settings.seed * 100_003 + epoch, train_corpus
            if encoded.mixture is not None:
                drawn = encoded.rows[encoded.mixture.draw(settings.seed, epoch)]
                counts = np.bincount(drawn, minlength=len(train_corpus)).tolist()
                pairs = itertools.chain.from_iterable(map(itertools.repeat, train_corpus, counts))
            return encode(pairs, dropout=settings.bpe_dropout, seed=seed)

        if settings.bpe_dropout:
            _check_bpe_dropout(is_encoded, tokenizers)
        if not is_encoded:
            report("Encoding the training text.")
        encoded = encode(train_corpus, progress=_report_pairs(report))
        width = settings.packed_width
        if width is None:
            width = _choose_packed_width(encoded, settings, max_length, report)
        self.packed_width = width  # 0 for one pair in each row
        # Each replica splits its rows into micro-batches.
        num_devices = (settings.gpus or 1) * process_group().num_processes
        num_replicas = num_devices // settings.model_parallel * settings.micro_batches
        self.sentence_profile = SentenceProfile.from_corpus(encoded, tokenizers.source)
        self.batches = TokenBatches(
            encode_epoch if settings.bpe_dropout else encoded,
            recipe.tokens_per_batch,
            seed=settings.seed,
            row_multiple=_ROW_MULTIPLE,
            num_replicas=num_replicas,
            packed_width=width or None,
        )
        num_tokens, mixture, drawn = int(encoded.target_lengths.sum()), encoded.mixture, slice(None)
        if mixture:
            drawn = mixture.draw(settings.seed, 0)
            for name, share, size in zip(mixture.names, mixture.shares, mixture.sizes, strict=True):
                report(f"An epoch has {share:,} pairs of {name}, which has {size:,}.")
        self.steps_per_epoch = self.batches.steps_per_epoch(0)
        self.tokens_per_step = int(encoded.target_lengths[drawn].sum()) / self.steps_per_epoch
        self.fingerprint: dict[str, Any] = {
            "pairs": len(encoded),
            "target_tokens": num_tokens,
            "checksum": zlib.crc32(encoded.target_ids, zlib.crc32(encoded.source_ids)),
            # Source ids contain EOS, so their checksum covers the line ends; target ids do not.
            "line_ends": zlib.crc32(encoded.target_offsets),
            "row_multiple": math.lcm(_ROW_MULTIPLE, num_replicas),
            "mixture": mixture and dataclasses.asdict(mixture),
        }
        # The shapes of long sentences may depend on the number of devices. BPE-dropout draws the
        # lengths of sentences at random, so that its shapes say nothing about the data.
        if not settings.bpe_dropout:
            shapes = sorted(self.batches.shapes(0).items())
            self.fingerprint["batch_shapes"] = zlib.crc32(repr(shapes).encode())
        report(
            f"{len(encoded):,} training pairs, {num_tokens:,} target tokens, "
            f"{self.steps_per_epoch:,} steps an epoch, "
            f"{self.batches.padding_share(0)['target']:.1%} padding"
        )
        self.valid_batches = {
            name: _valid_batches(encode(corpus, recipe.max_length), recipe.tokens_per_batch)
            for name, corpus in valid_corpora.items()
        }


def _valid_batches(encoded, tokens_per_batch):
    """Returns the batches of a validation set, which are not packed."""
    max_shapes = _COMPILED_SHAPES if keras.backend.backend() == "jax" else 24
    batches = TokenBatches(encoded, tokens_per_batch, shuffle=False, max_shapes=max_shapes)
    return list(batches.batches(0))


def _checksum(named_batches):
    name, batches = named_batches
    return name, zlib.crc32(b"".join(labels.tobytes() for _, labels, _ in batches))


def _choose_packed_width(encoded, settings, max_length, report):
    """Returns the width of packed rows for the backend; 0 for one pair in each row."""
    if keras.backend.backend() != "jax":
        return 0
    # BPE-dropout makes sentences longer, in each epoch by another length.
    longest = max(encoded.source_lengths.max(), encoded.target_lengths.max())
    width = max_length if settings.bpe_dropout else min(max_length, int(longest))
    width = -(-width // _ROW_MULTIPLE) * _ROW_MULTIPLE
    report(
        f"Each row of up to {width} positions holds several pairs, because JAX compiles a step for "
        "each batch shape, and so there is one (`packed_width=0` gives each pair a row)."
    )
    return width


def _check_bpe_dropout(is_encoded, tokenizers):
    if is_encoded:
        message = "`bpe_dropout` needs text to encode in every epoch"
        raise UserError(f"{message}. Received: an encoded corpus")
    for tokenizer in (tokenizers.source, tokenizers.of_target):
        kind = getattr(tokenizer, "model_type", type(tokenizer).__name__)
        if kind != "bpe":
            rule = "`bpe_dropout` needs tokenizers of type 'bpe', whose merges it drops"
            raise UserError(f"{rule}. Received: a tokenizer of type {kind!r}")


def _report_pairs(report):
    """Returns a function that reports every million encoded pairs."""
    reported = 0

    def progress(num_read: int) -> None:
        nonlocal reported
        if num_read - reported >= _READ_BETWEEN_REPORTS:
            reported = num_read
            report(f"{num_read:,} pairs encoded")

    return progress


@dataclasses.dataclass
class TrainingRun:
    """The values of a training that its loop and its evaluations share."""

    output: Path
    settings: TrainingSettings
    recipe: TrainingRecipe
    tokenizers: TokenizerPair
    data: TrainingData
    model: LossModel
    scores: dict[str, Any]  # the `ScoreOnDev` of each validation set, or None
    report: Callable[[str], object]
    held_out: HeldOutPairs | None = None  # validation pairs, to be kept beside the model

    def __post_init__(self):
        settings, recipe = self.settings, self.recipe
        self.task = get_task(settings.task)
        self.max_steps = settings.max_steps or recipe.max_steps
        # Numbers of last checkpoints to average.
        self.windows = settings.average_windows or (recipe.average_checkpoints,)
        self.evaluate_every = settings.evaluate_every or self.data.steps_per_epoch
        self.group = process_group()
        self.progress = Progress()
        keep = max(settings.keep_checkpoints or 1, *self.windows)
        self.checkpoints = Checkpoints(self.output / CHECKPOINT_FOLDER, keep)
        figures = ("loss", "perplexity", "accuracy", self.task.score_name)
        columns = ["step", "epoch", "minutes", "train_loss", "learning_rate", "tokens_per_second"]
        columns += [f"valid_{name}" for name in figures] + ["averaged"]
        columns += [f"{s}_{name}" for s in self.scores if s != "valid" for name in figures]
        self.history = HistoryFile(self.output / HISTORY_FILE, columns)
        self.board = None
        if settings.tensorboard and self.group.is_first:
            padding = self.data.batches.padding_share(0)
            folder = self.output / "tensorboard"
            self.board = TensorBoardLog(folder, self.data.tokens_per_step, padding)

    def weight_files(self) -> list[Path]:
        """Returns the weight files of the checkpoints, oldest first, as process 0 sees them."""
        return [*map(Path, self.group.in_first(self.checkpoints.weight_files))]


def start_run(output: Path, corpora, settings, tokenizers, report, strategy=None) -> TrainingRun:
    """Reads the data and builds the model of a training, with a strategy; writes nothing.

    `corpora` are those of training and validation, and further validation corpora by name;
    `tokenizers` is a pair of source and target.
    """
    train_corpus, valid_corpus, also_valid = corpora
    valid_corpora = also_valid if valid_corpus is None else {"valid": valid_corpus, **also_valid}
    task, recipe, group = get_task(settings.task), make_recipe(settings), process_group()
    resumes = check_output(output)
    if resumes:
        if settings.packed_width is None:  # That of the training, whatever its backend was.
            width = read_settings_file(output)["settings"].get("packed_width")
            settings = dataclasses.replace(settings, packed_width=width or 0)
        # Before the text is read, which may take long.
        reached = Progress.from_dict(Checkpoints(output / CHECKPOINT_FOLDER).metadata() or {})
        if reason := reached.why_it_ends(settings.max_steps or recipe.max_steps, settings):
            report(f"With the same text, nothing is left to train: {reason}")
    source, target = tokenizers
    if target is not None and source is None:
        raise ValueError("`target_tokenizer` needs `source_tokenizer`. Received: None")
    start = None
    if settings.start_from is not None:
        start = StartingModel(settings, tokenizers)
        source, target = start.tokenizers
        settings = dataclasses.replace(settings, shared_vocabulary=target is None)
    if source is not None and (target is not None or task.shares_a_given_tokenizer):
        tokenizers = TokenizerPair(source, target)
    elif resumes:
        saved = TokenizerPair.load(output, settings.shared_vocabulary)
        tokenizers = TokenizerPair(source or saved.source, saved.target)
    else:
        tokenizers = task.learn_tokenizers(train_corpus, settings, source, report)
    sizes = tokenizers.sizes if start is None else start.vocab_sizes
    config = make_config(settings, recipe, *sizes)
    data = TrainingData(train_corpus, valid_corpora, tokenizers, settings, recipe, report)
    if start is not None:
        data.sentence_profile = start.with_tags(data.sentence_profile)
    backend = keras.backend.backend()
    data.fingerprint |= {"config": config.to_dict(), "train_recipe": recipe.to_dict()}
    data.fingerprint |= task.settings.from_dict(settings.task_settings).fixed()
    settings = dataclasses.replace(settings, packed_width=data.packed_width)
    group.check_equal(
        {
            "keras_transformer": __version__,
            "keras": keras.__version__,
            backend: sys.modules[backend].__version__,
            "resumes": resumes,
            **settings.to_dict(),
            "data": data.fingerprint,
            "validation": [*map(_checksum, data.valid_batches.items())],
        }
    )
    if resumes:
        settings.check_resumes(output, data.fingerprint)
    keras.utils.set_random_seed(settings.seed)
    if settings.deterministic:
        import tensorflow as tf

        tf.config.experimental.enable_op_determinism()
    with strategy_scope(strategy):
        transformer = Transformer(config, "mixed_bfloat16" if settings.mixed_precision else None)
        if start is not None and not resumes:
            start.copy_weights(transformer, report)
        for part in settings.freeze or ():
            for side in ("source_", "target_") if part == "embedding" else ("",):
                getattr(transformer, side + part).trainable = False
        if settings.lora is not None:
            enable_lora(transformer, settings.lora)
        packed = bool(settings.packed_width)
        model = LossModel(transformer, recipe.label_smoothing, packed=packed, r_drop=recipe.r_drop)
        model.micro_batches, model.streams = settings.micro_batches, settings.streams
        compile_model(model, recipe, jit_compile=settings.jit_compile)
    scores = {
        name: task.make_score(corpus, tokenizers, settings, recipe)
        for name, corpus in valid_corpora.items()
    }
    for score in filter(None, scores.values()):
        score.num_streams, score.group = settings.streams, group
    held_out = valid_corpus if isinstance(valid_corpus, HeldOutPairs) else None
    return TrainingRun(output, settings, recipe, tokenizers, data, model, scores, report, held_out)


def make_recipe(settings) -> TrainingRecipe:
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
        peak = ADAPTATION_RATE / start["model"].d_model
        recipe = dataclasses.replace(
            recipe, peak_learning_rate=peak, warmup_steps=ADAPTATION_WARMUP
        )
    return TrainingRecipe.from_dict({**recipe.to_dict(), **settings.recipe})


def make_config(settings, recipe, vocab_size, target_vocab_size=None) -> TransformerConfig:
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
