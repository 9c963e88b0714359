"""Adapting a model: LoRA, and the model that a training starts from, with any vocabulary."""

import dataclasses
from collections.abc import Callable, Sequence

import keras
import numpy as np
from keras import ops

from keras_transformer.checks import check_positive_integer
from keras_transformer.data import SubwordTokenizer
from keras_transformer.data.tokenizer import SPECIAL_PIECES, UNK_ID, Tokenizer
from keras_transformer.data.tokenizer_pair import TokenizerPair
from keras_transformer.decoding import SuppressTokens
from keras_transformer.errors import UserError, one_line
from keras_transformer.inference.model_directory import (
    check_sizes,
    read_config,
    read_model,
    read_tokenizers,
    reading_values,
)
from keras_transformer.inference.sentences import SentenceProfile
from keras_transformer.inference.tasks import get_task
from keras_transformer.layers.effective_weights import all_maps
from keras_transformer.layouts import CONFIG_FILE


def enable_lora(model: keras.Model, rank: int = 8, lora_alpha: float | None = None) -> None:
    """Freezes a model, and adds the factors of LoRA to its linear maps; only these train then.

    Each `keras.layers.Dense` in the model gets them: those of attentions, of feed-forward networks
    and, in a model that you composed, your own. Embeddings, biases and norms stay as they are.
    Call it before `compile`, and after `quantize` if the matrices are to be integers.

    Args:
        model: A built model.
        rank: Number of columns of the first factor, and of rows of the second.
        lora_alpha: `lora_alpha / rank` multiplies the product of the factors; None for `rank`.

    Raises:
        ValueError: If the model has no linear map, or one that has LoRA already or is quantized in
            another mode than int8 or int4.

    Example:

    >>> model = keras_transformer.Transformer.from_preset("tiny", vocab_size=1000)
    >>> keras_transformer.training.enable_lora(model, rank=4)
    >>> all("lora" in weight.name for weight in model.trainable_weights)
    True

    Reference: Hu et al. (2021), "LoRA: Low-Rank Adaptation of Large Language Models".
    """
    check_positive_integer("rank", rank)
    parts = [part for part in all_maps(model) if isinstance(part, keras.layers.Dense)]
    if not parts:
        rule = "`model` must contain linear maps, layers of class `Dense`"
        raise ValueError(f"{rule}. Received: model={model!r}")
    for part in parts:
        if part.lora_enabled or part.quantization_mode not in (None, "int8", "int4"):
            state = "LoRA" if part.lora_enabled else f"quantization_mode={part.quantization_mode!r}"
            rule = "LoRA is for maps without it, plain or quantized in int8 or int4"
            raise ValueError(f"{rule}. Received: {part.path!r} with {state}")
    model.trainable = True  # The parts of a frozen model would stay frozen.
    factors = set()
    for part in parts:
        part.enable_lora(rank, lora_alpha)
        factors |= {id(part.lora_kernel_a), id(part.lora_kernel_b)}
    for weight in model.trainable_weights:
        if id(weight) not in factors:
            weight.trainable = False


class StartingModel:
    """The model that a training starts from.

    Args:
        settings: A `TrainingSettings` with a `start_from`.
        given: Tokenizers of source and target, or None, as in `train`.

    Attributes:
        tokenizers: `TokenizerPair` of the training: those that are given, else the model's.
        vocab_sizes: The fields `vocab_size` and `target_vocab_size` of the training's config.

    Raises:
        UserError: If the directory is damaged or of another task, or the given tokenizers are of
            another kind than the model's, or one for both languages, where the model has two.
    """

    def __init__(self, settings, given: Sequence[Tokenizer | None]):
        self._directory = settings.start_from
        self.config = config = read_config(self._directory)
        check_sizes(self._directory, config)
        task = get_task(settings.task)
        expected = {"task": settings.task, **settings.task_settings}
        for name in ("task", *task.pipeline.common_settings):
            value, kind = config.get(name), task.pipeline.settings.get(name)
            if value is not None and kind is not None:
                # Files of older versions lack newer fields.
                with reading_values(f"{self._directory}/{CONFIG_FILE}"):
                    value = kind.from_dict(value).to_dict()
            if value != expected[name]:
                rule = f"The model to start from must have the {name} {expected[name]!r}"
                raise UserError(f"{rule}. Received: {self._directory!r} with {value!r}")
        self._known = self.tokenizers = read_tokenizers(self._directory, config)
        model = config["model"]
        self.vocab_sizes = model.vocab_size, model.target_vocab_size
        self._keeps_vocabulary = True
        source, target = given
        if source is None:
            return
        if target is None and not task.shares_a_given_tokenizer:
            target = self._known.target
        pair = TokenizerPair(source, target)
        if _contents(pair) == _contents(self._known):
            self.tokenizers = pair  # They may be in other languages.
            return
        if self._known.of_target.language and not pair.of_target.language:
            rule = "The model to start from has several languages, which no other vocabulary has"
            raise UserError(f"{rule}. Received: a {type(pair.of_target).__name__}")
        codes = getattr(self._known.source, "languages", ())
        if codes and not set(codes).intersection(pair.source.symbols):
            rule = "The model to start from reads a language code before each text. A vocabulary "
            rule += "must have yours as a symbol (`keras-transformer vocab --symbols`)"
            raise UserError(f"{rule}. Received: one without {', '.join(sorted(codes)[:8])}")
        if settings.lora is not None:
            rule = "`lora` trains no embeddings, so the vocabulary must be that of `start_from`"
            raise UserError(f"{rule}. Received: lora={settings.lora} with another vocabulary")
        for side in ("source", "of_target"):
            new, known = getattr(pair, side), getattr(self._known, side)
            if isinstance(new, SubwordTokenizer) != isinstance(known, SubwordTokenizer):
                rule = "A vocabulary must be of the kind of the model to start from, a "
                rule += type(known).__name__
                raise UserError(f"{rule}. Received: a {type(new).__name__}")
        if pair.is_shared and model.target_vocab_size is not None:
            rule = "The model to start from has a vocabulary for each language: give it two, as in "
            raise UserError(f"{rule}a prepared corpus. Received: one for both")
        self.tokenizers, self.vocab_sizes = pair, pair.sizes
        self._keeps_vocabulary = False
        self.config["search"] = _without_pieces(config["search"])

    def extended(self, profile: SentenceProfile) -> SentenceProfile:
        """Returns the profile with what this model knows: longer sentences, abbreviations, tags."""
        stored = self.config.get("sentence_profile")
        stored = stored and SentenceProfile.from_dict(stored)
        # Without a profile, a model reads all that fits.
        longest = stored.longest if stored else self.config.get("max_source_length", 1024) - 1
        tags = SentenceProfile.tags_of(stored, self._known.source)
        kept = set(self.tokenizers.source.symbols).intersection(tags)
        known = stored.abbreviations if stored else ()
        return dataclasses.replace(
            profile,
            longest=max(profile.longest, longest),
            abbreviations=tuple(sorted({*profile.abbreviations, *known})),
            tags=tuple(sorted(kept.union(profile.tags or ()))),
        )

    def copy_weights(self, transformer, report: Callable[[str], object]) -> None:
        """Sets the weights of a `Transformer`.

        In another vocabulary, the row of a new piece is the mean of the rows of the known pieces
        that spell it.
        """
        model = read_model(self._directory, self.config)
        pair, known = self.tokenizers, self._known
        parts = ["encoder", "decoder"]
        if self._keeps_vocabulary:
            parts += ["source_embedding", "target_embedding"]
        try:
            for name in parts:
                getattr(transformer, name).set_weights(getattr(model, name).get_weights())
        except ValueError as error:
            message = "The settings must not change the weights of the model to start from"
            raise UserError(f"{message}: {one_line(error)}") from error
        if self._keeps_vocabulary:
            return
        if not pair.is_shared:
            layers = transformer.source_embedding, model.source_embedding
            _copy_rows(*layers, pair.source, [known.source], report)
        layers = transformer.target_embedding, model.target_embedding
        known_tokenizers = [known.of_target]
        if pair.is_shared:  # An imported model has two tokenizers of one vocabulary.
            known_tokenizers.append(known.source)
        _copy_rows(*layers, pair.of_target, known_tokenizers, report)


def _without_pieces(search):
    """Returns a search without constraints on ids, which are others in another vocabulary."""
    kept = tuple(
        constraint
        for constraint in getattr(search, "constraints", ())
        if not isinstance(constraint, SuppressTokens) or max(constraint.ids) < len(SPECIAL_PIECES)
    )
    return dataclasses.replace(search, constraints=kept) if search else search


def _contents(pair):
    """Returns the files of tokenizers, all in one language if they have several."""
    given = [tokenizer for tokenizer in pair if tokenizer is not None]
    same = [t.with_language(min(t.language_ids)) if t.language_ids else t for t in given]
    return [tokenizer._file_content() for tokenizer in same]


def _copy_rows(layer, known_layer, tokenizer, known, report):
    rows, num_new = spellings(tokenizer, known)
    for name in ("embeddings", "bias"):
        weight, known_weight = getattr(layer, name), getattr(known_layer, name)
        if weight is not None and known_weight is not None:
            values = ops.convert_to_numpy(known_weight)
            weight.assign(np.stack([values[ids].mean(axis=0) for ids in rows]))
    report(
        f"{len(rows) - num_new:,} of {len(rows):,} pieces keep their embeddings; the others begin "
        "as the mean of the pieces that spell them."
    )


def spellings(tokenizer: Tokenizer, known: Sequence[Tokenizer]) -> tuple[list[list[int]], int]:
    """Returns the known ids that spell each piece of a vocabulary, and the number of new pieces.

    Args:
        tokenizer: The tokenizer of this vocabulary.
        known: Tokenizers of the known vocabulary, of which the best spelling counts.
    """
    pieces, size = tokenizer.pieces(range(tokenizer.vocab_size)), known[0].vocab_size
    spelling_of = {piece: [number] for number, piece in enumerate(known[0].pieces(range(size)))}
    new = [piece for piece in pieces if piece not in spelling_of]
    for piece, *candidates in zip(new, *(t.spell(new) for t in known), strict=True):
        best = min(candidates, key=lambda ids: (ids.count(UNK_ID), len(ids)))
        spelling_of[piece] = best or [UNK_ID]
    special = len(SPECIAL_PIECES)
    ids = [[number] for number in range(special)] + [spelling_of[p] for p in pieces[special:]]
    return ids, len(new)
