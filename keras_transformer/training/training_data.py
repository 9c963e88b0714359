"""`TrainingData`: the batches of a training, made from its corpora."""

import dataclasses
import itertools
import math
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import keras
import numpy as np

from keras_transformer.data import EncodedCorpus, TokenBatches
from keras_transformer.data.tokenizer import UNK_ID
from keras_transformer.data.tokenizer_pair import TokenizerPair
from keras_transformer.errors import UserError
from keras_transformer.inference.sentences import SentenceProfile

_READ_BETWEEN_REPORTS = 1_000_000
_ROW_MULTIPLE = 8
_CHUNK, _MUCH_UNKNOWN = 10_000_000, 0.001  # of the tokens: at once, and a share to report
# Number of shapes of the validation batches: JAX compiles each.
_NUM_SHAPES, _NUM_COMPILED_SHAPES = 24, 2


@dataclasses.dataclass(frozen=True)
class TrainingData:
    """The batches of a training, and what they say about its text."""

    batches: TokenBatches
    # By name of the validation set; "valid", if it is given, is the first and decides the weights.
    valid_batches: Mapping[str, list]
    packed_width: int  # of a row with several pairs; 0 for one pair in each row
    steps_per_epoch: int
    tokens_per_step: float  # target tokens of an average step, padding not counted
    sentence_profile: SentenceProfile
    fingerprint: dict[str, Any]  # the same whenever the training is resumed

    def valid_checksums(self) -> list[tuple[str, int]]:
        """Returns the name and a checksum of each validation set."""
        return [
            (name, zlib.crc32(b"".join(labels.tobytes() for _, labels, _ in batches)))
            for name, batches in self.valid_batches.items()
        ]


def make_training_data(
    train_corpus: Iterable,
    valid_corpora: Mapping[str, Iterable],
    tokenizers: TokenizerPair,
    settings,
    recipe,
    packed_width: int | None = None,
    num_replicas: int = 1,
    report: Callable[[str], object] = lambda line: None,
) -> TrainingData:
    """Encodes the corpora and plans their batches.

    Args:
        train_corpus: Pairs of `str`, or an `EncodedCorpus`.
        valid_corpora: The same by name; they are not in the fingerprint.
        tokenizers: Tokenizers of source and target.
        settings, recipe: `TrainingSettings` and `TrainingRecipe`.
        packed_width: Width of packed rows; None for the one that suits the backend.
        num_replicas: Number of equal parts of the rows of a batch.
        report: Called with messages.
    """
    if settings.bpe_dropout:
        _check_bpe_dropout(train_corpus, tokenizers)
    if not isinstance(train_corpus, EncodedCorpus):
        report("Encoding the training text.")
    max_length = min(recipe.max_length, packed_width or recipe.max_length)
    encoded = _encode(train_corpus, tokenizers, max_length, progress=_report_pairs(report))
    if packed_width is None:
        packed_width = _choose_packed_width(encoded, settings, max_length, report)
    _report_unknown(encoded, report)
    encoded_epochs: Any = encoded
    if settings.bpe_dropout:
        encoded_epochs = _drop_merges(train_corpus, encoded, tokenizers, max_length, settings)
    batches = TokenBatches(
        encoded_epochs,
        recipe.tokens_per_batch,
        seed=settings.seed,
        row_multiple=_ROW_MULTIPLE,
        num_replicas=num_replicas,
        packed_width=packed_width or None,
    )
    steps_per_epoch = batches.steps_per_epoch(0)
    _report_epoch(encoded, batches, steps_per_epoch, report)
    drawn = encoded.mixture.draw(settings.seed, 0) if encoded.mixture else slice(None)
    return TrainingData(
        batches,
        {
            name: _valid_batches(
                _encode(corpus, tokenizers, recipe.max_length),
                max(1, recipe.tokens_per_batch // num_replicas),
                len(tokenizers.of_target.beginning),
            )
            for name, corpus in valid_corpora.items()
        },
        packed_width,
        steps_per_epoch,
        int(encoded.target_lengths[drawn].sum()) / steps_per_epoch,
        SentenceProfile.from_corpus(encoded, tokenizers.source),
        _fingerprint(encoded, batches, num_replicas, has_fixed_lengths=not settings.bpe_dropout),
    )


def _encode(corpus, tokenizers, max_length, **options):
    if isinstance(corpus, EncodedCorpus):
        return corpus.up_to(max_length)
    return EncodedCorpus.from_corpus(corpus, *tokenizers, max_length, **options)


def _drop_merges(corpus, encoded, tokenizers, max_length, settings):
    """Returns a function from an epoch to its corpus, encoded with other merges left out."""

    def pairs_of(epoch):
        if encoded.mixture is None:
            return corpus
        drawn = encoded.rows[encoded.mixture.draw(settings.seed, epoch)]
        counts = np.bincount(drawn, minlength=len(corpus)).tolist()
        return itertools.chain.from_iterable(map(itertools.repeat, corpus, counts))

    def encode_epoch(epoch):
        options = {"dropout": settings.bpe_dropout, "seed": settings.seed * 100_003 + epoch}
        return _encode(pairs_of(epoch), tokenizers, max_length, **options)

    return encode_epoch


def _check_bpe_dropout(corpus, tokenizers):
    if isinstance(corpus, EncodedCorpus):
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


def _report_unknown(encoded, report):
    for side, ids in {"source": encoded.source_ids, "target": encoded.target_ids}.items():
        chunks = (ids[start : start + _CHUNK] for start in range(0, len(ids), _CHUNK))
        share = sum(np.count_nonzero(chunk == UNK_ID) for chunk in chunks) / max(len(ids), 1)
        if share >= _MUCH_UNKNOWN:
            report(f"{share:.1%} of the {side} tokens are not in the vocabulary.")


def _report_epoch(encoded, batches, steps_per_epoch, report):
    if mixture := encoded.mixture:
        for name, share, size in zip(mixture.names, mixture.shares, mixture.sizes, strict=True):
            report(f"An epoch has {share:,} pairs of {name}, which has {size:,}.")
    report(
        f"{len(encoded):,} training pairs, {int(encoded.target_lengths.sum()):,} target tokens, "
        f"{steps_per_epoch:,} steps an epoch, {batches.padding_share(0)['target']:.1%} padding"
    )


def _fingerprint(encoded, batches, num_replicas, has_fixed_lengths):
    fingerprint: dict[str, Any] = {
        "pairs": len(encoded),
        "target_tokens": int(encoded.target_lengths.sum()),
        "checksum": zlib.crc32(encoded.target_ids, zlib.crc32(encoded.source_ids)),
        # Source ids contain EOS, so their checksum covers the line ends; target ids do not.
        "line_ends": zlib.crc32(encoded.target_offsets),
        "row_multiple": math.lcm(_ROW_MULTIPLE, num_replicas),
        "mixture": encoded.mixture and dataclasses.asdict(encoded.mixture),
    }
    # The shapes of long sentences may depend on the number of devices. BPE-dropout draws the
    # lengths of sentences at random, so that its shapes say nothing about the data.
    if has_fixed_lengths:
        shapes = sorted(batches.shapes(0).items())
        fingerprint["batch_shapes"] = zlib.crc32(repr(shapes).encode())
    return fingerprint


def _valid_batches(encoded, num_tokens, num_given):
    """Returns the batches of a validation set, of at most `num_tokens` tokens and not packed.

    The first `num_given` labels are given to every search, such as the language; none counts.
    """
    max_shapes = _NUM_COMPILED_SHAPES if keras.backend.backend() == "jax" else _NUM_SHAPES
    batches = TokenBatches(encoded, num_tokens, shuffle=False, max_shapes=max_shapes)
    valid_batches = list(batches.batches(0))
    for _, _, weights in valid_batches:
        weights[:, :num_given] = 0.0
    return valid_batches
