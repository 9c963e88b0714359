"""The tokenizers and batches of a training."""

import logging
import math
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from keras_transformer.data import (
    EncodedCorpus,
    SubwordTokenizer,
    TokenBatches,
    build_subword_vocabulary,
    train_sentencepiece,
)
from keras_transformer.data.tokenizer_pair import TokenizerPair
from keras_transformer.errors import UserError
from keras_transformer.inference.sentences import SentenceProfile

_LOGGER = logging.getLogger(__name__)
_READ_BETWEEN_REPORTS = 1_000_000
_ROW_MULTIPLE = 8


def make_tokenizers(
    corpus, settings, report: Callable[[str], object] = _LOGGER.info
) -> TokenizerPair:
    """Learns the vocabularies that `settings` describe from a corpus of pairs of `str`."""
    size = "all" if settings.vocab_size is None else f"{settings.vocab_size:,}"
    sides = "for both languages" if settings.shared_vocabulary else "for each language"
    report(f"Learning a vocabulary of {size} {settings.tokenizer} pieces {sides}.")
    if settings.shared_vocabulary:
        return TokenizerPair(learn_vocabulary(corpus, settings))
    sides = ((pair[side] for pair in corpus) for side in (0, 1))
    return TokenizerPair(*(learn_vocabulary(lines, settings) for lines in sides))


def choose_tokenizers(
    output: Path, resumes: bool, corpus, settings, task, source, target, report
) -> TokenizerPair:
    """Returns the given tokenizers, the tokenizers of a resumed training, or new ones."""
    if target is not None and source is None:
        raise ValueError("`target_tokenizer` needs `source_tokenizer`. Received: None")
    if source is not None and (target is not None or task.shares_a_given_tokenizer):
        return TokenizerPair(source, target)
    if not resumes:
        return task.learn_tokenizers(corpus, settings, source, report)
    saved = TokenizerPair.load(output, settings.shared_vocabulary)
    return TokenizerPair(source or saved.source, saved.target)


def learn_vocabulary(lines, settings, min_count: int = 1):
    """Returns a tokenizer whose vocabulary is learned from lines or pairs of them."""
    if settings.tokenizer == "subword":
        return build_subword_vocabulary(lines, settings.vocab_size, min_count)
    if settings.vocab_size is None:
        raise UserError("`vocab_size` must be set to learn subwords. Received: vocab_size=None")
    return train_sentencepiece(lines, settings.vocab_size, settings.tokenizer, allow_fewer=True)


class TrainingData:
    """The batches of a training, and a `fingerprint` that must stay the same when it is resumed."""

    def __init__(
        self,
        train_corpus,
        valid_corpus,
        tokenizers: TokenizerPair,
        settings,
        recipe,
        report: Callable[[str], object] = _LOGGER.info,
    ):
        self._tokenizers = tokenizers
        self._max_length = min(recipe.max_length, settings.packed_width or recipe.max_length)
        if settings.bpe_dropout:
            _check_drops(train_corpus, tokenizers)
        if not isinstance(train_corpus, EncodedCorpus):
            report("Encoding the training text.")
        encoded = self._encode(train_corpus, progress=_reads(report))
        # Each replica splits its rows into micro-batches.
        num_replicas = (settings.gpus or 1) * settings.micro_batches
        self.fingerprint: dict[str, Any] = {
            "pairs": len(encoded),
            "target_tokens": int(encoded.target_lengths.sum()),
            "checksum": zlib.crc32(encoded.target_ids, zlib.crc32(encoded.source_ids)),
            # Source ids contain EOS, so their checksum covers the line ends; target ids do not.
            "line_ends": zlib.crc32(encoded.target_offsets),
            "row_multiple": math.lcm(_ROW_MULTIPLE, num_replicas),
        }

        def encode_epoch(epoch):
            seed = settings.seed * 100_003 + epoch
            return self._encode(train_corpus, dropout=settings.bpe_dropout, seed=seed)

        self.sentence_profile = SentenceProfile.from_corpus(encoded, tokenizers.source)
        self.batches = TokenBatches(
            encode_epoch if settings.bpe_dropout else encoded,
            recipe.tokens_per_batch,
            seed=settings.seed,
            row_multiple=_ROW_MULTIPLE,
            num_replicas=num_replicas,
            packed_width=settings.packed_width,
        )
        # The shapes of long sentences may depend on the number of devices. BPE-dropout draws the
        # lengths of sentences at random, so that its shapes say nothing about the data.
        if not settings.bpe_dropout:
            shapes = sorted(self.batches.shapes(0).items())
            self.fingerprint["batch_shapes"] = zlib.crc32(repr(shapes).encode())
        self.steps_per_epoch = self.batches.steps_per_epoch(0)
        self.tokens_per_step = self.fingerprint["target_tokens"] / self.steps_per_epoch
        report(
            f"{len(encoded):,} training pairs, {self.fingerprint['target_tokens']:,} target tokens,"
            f" {self.steps_per_epoch:,} steps an epoch, "
            f"{self.batches.padding_share(0)['target']:.1%} padding"
        )
        self.valid_batches = None
        if valid_corpus is not None:
            encoded = self._encode(valid_corpus)
            batches = TokenBatches(encoded, recipe.tokens_per_batch, shuffle=False)
            self.valid_batches = list(batches.batches(0))

    def _encode(self, corpus, **options) -> EncodedCorpus:
        if isinstance(corpus, EncodedCorpus):
            return corpus.up_to(self._max_length)
        return EncodedCorpus.from_corpus(corpus, *self._tokenizers, self._max_length, **options)


def _check_drops(corpus, tokenizers: TokenizerPair) -> None:
    if isinstance(corpus, EncodedCorpus):
        message = "`bpe_dropout` needs text to encode in every epoch"
        raise UserError(f"{message}. Received: an encoded corpus")
    for tokenizer in (tokenizers.source, tokenizers.of_target):
        is_subword = isinstance(tokenizer, SubwordTokenizer)
        kind = "subword" if is_subword else getattr(tokenizer, "model_type", "bpe")
        if kind != "bpe":
            rule = "`bpe_dropout` needs tokenizers of type 'bpe', whose merges it drops"
            raise UserError(f"{rule}. Received: a tokenizer of type {kind!r}")


def _reads(report: Callable[[str], object]) -> Callable[[int], None]:
    """Returns a function that reports the number of pairs read every million."""
    reported = 0

    def progress(num_read: int) -> None:
        nonlocal reported
        if num_read - reported >= _READ_BETWEEN_REPORTS:
            reported = num_read
            report(f"{num_read:,} pairs encoded")

    return progress
