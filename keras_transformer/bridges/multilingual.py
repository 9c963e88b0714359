"""Published M2M100, NLLB-200 and mBART-50 models as a `Translator` of two languages."""

import os
import pathlib
import re
from typing import Any

import numpy as np

from keras_transformer.bridges import peer
from keras_transformer.bridges.hub import find_model, read_weights
from keras_transformer.bridges.marian import ACTIVATIONS, block_weights
from keras_transformer.bridges.opus_mt import (
    NEVER,
    PublishedWeights,
    check_generation,
    model_sizes,
    origin_of,
    published_rows,
    read_generation,
    read_vocabulary,
    search_of,
)
from keras_transformer.data.lookup_tokenizers import MappedTokenizer
from keras_transformer.data.sentencepiece_tokenizer import load_processor
from keras_transformer.data.tokenizer import BOS_ID, PAD_ID, SPECIAL_PIECES
from keras_transformer.data.tokenizer_pair import LARGEST_VOCABULARY
from keras_transformer.errors import UserError
from keras_transformer.files import read_json, read_small_file
from keras_transformer.inference.model_directory import reading_values
from keras_transformer.inference.translator import Translator
from keras_transformer.models import Transformer, TransformerConfig

_SENTENCEPIECE = "sentencepiece.bpe.model"
# fairseq's reserved pieces, in the order of its ids; SentencePiece has three of its own.
_RESERVED, _NUM_OTHERS = ("<s>", "<pad>", "</s>", "<unk>"), 3
# Positions are counted from the id of padding, 1, and one more.
_FIRST_POSITION = 2
# Settings that transformers does not write into a file, by `model_type`.
_DEFAULTS = {
    "m2m_100": {"activation_function": "relu", "scale_embedding": True},
    "mbart": {"activation_function": "gelu", "scale_embedding": False},
}
# Language pieces of M2M100, NLLB-200 and mBART-50.
_LANGUAGE = re.compile(r"__[a-z]{2,3}__|[a-z]{3}_[A-Z][a-z]{3}|[a-z]{2}_[A-Z]{2}")
_EPSILON = 1e-5  # torch's default
_MOST_UNUSED = 64
# A table of them is computed, whatever the size of the file.
_MOST_POSITIONS = 2**16


def load_multilingual(
    source: str | os.PathLike, source_language: str, target_language: str, dtype: Any = None
) -> Translator:
    """Returns a `Translator` between two languages: a published M2M100, NLLB-200 or mBART-50 model.

    Its tokenizers put the piece of the source language in front of each text, and each answer
    begins with that of the target language; `translator.with_languages` chooses others. The
    sinusoids of M2M100 and NLLB-200 have other wavelengths than the paper's, so the model has them
    as learned positions. `translator.origin` has the name and the license: NLLB is not for
    commercial use.

    Args:
        source: A folder in transformers' format with `config.json`, `sentencepiece.bpe.model`, the
            weights and, for M2M100, `vocab.json`; the languages are in `special_tokens_map.json`,
            `tokenizer.json` or `added_tokens.json`. Or the name of a model on the hub, such as
            `"facebook/nllb-200-distilled-600M"`.
        source_language: Code of the language of the texts: one of the model, such as `"eng_Latn"`
            of NLLB-200, or one of ISO 639 that clearly means it, such as `"en"`.
        target_language: Code of the language to translate into.
        dtype: Dtype policy of the model; None for the global one.

    Raises:
        UserError: If the model has no such language, a file is missing or damaged, files do not fit
            together, or the architecture is another one.

    Example:

    >>> from keras_transformer.bridges import load_multilingual
    >>> translator = load_multilingual("facebook/m2m100_418M", "en", "de")  # doctest: +SKIP
    >>> translator.translate(["A dog runs."])  # doctest: +SKIP

    Reference: Fan et al. (2020), https://arxiv.org/abs/2010.11125; NLLB Team (2022),
    https://arxiv.org/abs/2207.04672; Tang et al. (2020), https://arxiv.org/abs/2008.00401.
    """
    folder = find_model(source, *_DEFAULTS)
    path = folder / "config.json"
    settings = read_json(path)
    settings = {**_DEFAULTS[settings["model_type"]], **settings}
    _check_order(folder, settings)
    pieces, model = _read_pieces(folder)
    languages = _read_languages(folder, len(pieces))
    with reading_values(path):
        pieces = _all_pieces(pieces, languages, settings.get("vocab_size"))
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    with reading_values(path):
        config = _config(settings)
    with reading_values(repr(str(folder))):  # config.json or generation_config.json
        generation = read_generation(folder, settings)
        # The tokenizers choose the language. An early stop saves time and changes few answers.
        others = {"forced_bos_token_id": None, "early_stopping": None}
        check_generation({**generation, **others}, vocabulary, start="</s>")
        rows = published_rows(vocabulary, start="</s>")
        search = search_of(generation, rows)
    # Reserved pieces of ours that the vocabulary has too, such as `<s>`, are in no text.
    names = [f"{pieces[n]}_" if pieces[n] in SPECIAL_PIECES else pieces[n] for n in rows[4:]]
    with reading_values(repr(str(folder / _SENTENCEPIECE))):
        tokenizer = MappedTokenizer(model, names, (), list(languages))
    tokenizers = tokenizer.with_language(source_language), tokenizer.with_language(target_language)
    weights = PublishedWeights(*read_weights(folder))
    num_computed = config.vocab_size
    if not config.embedding_norm:  # mBART's positions are in the file.
        num_computed += 2 * (config.max_length or 0) * config.d_model
    weights.check(config, [len(pieces)], num_computed)
    transformer = Transformer(config, dtype=dtype, initialize=False)
    _copy(weights, transformer, rows)
    weights.check_copied(transformer)
    origin = origin_of(source, folder, settings)
    return Translator(transformer, *tokenizers, search, origin=origin)


def _read_optional(folder, name):
    """Returns the values of a file of JSON, or none if there is no such file."""
    path = folder / name
    return read_json(path, LARGEST_VOCABULARY) if path.is_file() else {}


def _check_order(folder, settings):
    """Raises a `UserError` if the model reads the language after the text, `X </s> [language]`."""
    tokenizer = _read_optional(folder, "tokenizer_config.json")
    with reading_values(folder / "tokenizer_config.json"):
        if settings["model_type"] == "mbart":
            name = tokenizer.get("tokenizer_class") or settings.get("tokenizer_class")
            rule = "mBART-50 can be imported, whose tokenizer is 'MBart50Tokenizer', and not the "
            rule += "first mBART, which reads the language after the text"
            is_mbart_50 = str(name).removesuffix("Fast") == "MBart50Tokenizer"
            peer.check_supported(is_mbart_50, rule, tokenizer_class=name)
        is_legacy = tokenizer.get("legacy_behaviour")
        rule = "The legacy order cannot be imported, which has the language after the text"
        peer.check_supported(not is_legacy, rule, legacy_behaviour=is_legacy)


def _read_pieces(folder: pathlib.Path):
    """Returns the published pieces in the order of their ids, and the model of SentencePiece.

    M2M100 has the ids in `vocab.json`. The others have fairseq's reserved ones, then
    SentencePiece's. The languages follow.
    """
    if not (folder / _SENTENCEPIECE).is_file():
        raise UserError(f"{str(folder)!r} lacks {_SENTENCEPIECE}.")
    model = read_small_file(folder / _SENTENCEPIECE, LARGEST_VOCABULARY)
    if (folder / "vocab.json").is_file():
        vocabulary = read_vocabulary(folder / "vocab.json")
        pieces = sorted(vocabulary, key=vocabulary.__getitem__)
    else:
        with reading_values(repr(str(folder / _SENTENCEPIECE))):
            processor = load_processor(model)
        numbers = range(_NUM_OTHERS, processor.get_piece_size())
        # Fairseq has four reserved ids, one more than SentencePiece, and a piece for masks.
        pieces = [*_RESERVED, *map(processor.id_to_piece, numbers)]
    return pieces, model


def _read_languages(folder, first):
    """Returns the ids of the language pieces; those in a list of a file begin with `first`.

    A language that was added to a published model has its id in one of the other files.
    """
    with reading_values(repr(str(folder))):
        tokens = _read_optional(folder, "tokenizer.json").get("added_tokens", ())
        ids = {token.get("content"): token.get("id") for token in tokens}
        ids |= _read_optional(folder, "added_tokens.json")
        special = _read_optional(folder, "special_tokens_map.json")
        listed = special.get("additional_special_tokens", ())
        names = [token.get("content") if isinstance(token, dict) else token for token in listed]
        languages = {piece: ids.get(piece, first + number) for number, piece in enumerate(names)}
        languages |= {piece: ids[piece] for piece in ids if _LANGUAGE.fullmatch(piece)}
    if not languages:
        rule = "lacks special_tokens_map.json with the languages as `additional_special_tokens`"
        raise UserError(f"{str(folder)!r} {rule}.")
    return languages


def _all_pieces(pieces, languages, size):
    """Returns the pieces of all rows of the matrix, in the order of their ids.

    No text uses some rows: those of masks, and those that make their number even.
    """
    num_pieces = len(pieces) + len(languages)
    if not isinstance(size, int) or not num_pieces <= size < num_pieces + _MOST_UNUSED:
        rule = f"`vocab_size` must be that of the {num_pieces:,} pieces and languages"
        raise ValueError(f"{rule}, or a little more. Received: vocab_size={size!r}")
    by_id = {number: piece for piece, number in languages.items()}
    if len(by_id) < len(languages) or not all(len(pieces) <= number < size for number in by_id):
        rule = f"The languages must have ids of their own, from {len(pieces):,} to {size - 1:,}"
        raise ValueError(f"{rule}. Received: {sorted(by_id)}"[:300])
    others = (by_id.get(number, f"unused{number}") for number in range(len(pieces), size))
    return [*pieces, *others]


def _config(settings) -> TransformerConfig:
    activation = settings["activation_function"]
    rule = f"`activation_function` must be one of {', '.join(map(repr, ACTIVATIONS))}"
    peer.check_supported(activation in ACTIVATIONS, rule, activation_function=activation)
    for name in ("scale_embedding", "tie_word_embeddings"):
        value, rule = settings.get(name, True), f"Models with {name}=True can be imported"
        peer.check_supported(value is True, rule, **{name: value})
    length = settings.get("max_position_embeddings", 1024)
    rule = f"`max_position_embeddings` must be at most {_MOST_POSITIONS:,}"
    peer.check_supported(length <= _MOST_POSITIONS, rule, max_position_embeddings=length)
    sizes = model_sizes({**settings, "vocab_size": settings["vocab_size"] + 1})  # BOS has a row.
    return TransformerConfig(
        activation=ACTIVATIONS[activation],
        norm="pre",
        position="learned",
        max_length=length,
        use_bias=True,
        output_bias=True,
        embedding_norm=settings["model_type"] == "mbart",
        norm_epsilon=_EPSILON,
        **sizes,
    )


def _sinusoids(length, width):
    """Returns the positions of fairseq, sines first, `[length, width]`."""
    steps = np.arange(width // 2) / (width // 2 - 1)
    positions = np.arange(_FIRST_POSITION, _FIRST_POSITION + length)
    angles = positions[:, None] * 10_000.0**-steps
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


def _copy(weights, model, rows):
    width, num_rows = model.config.d_model, len(rows) - 1
    embedding, name = model.target_embedding, "model.shared.weight"
    peer.read({name: embedding.embeddings}, {name: weights.get(name, num_rows, width)[rows]})
    bias = np.zeros(len(rows), "float32")
    if "final_logits_bias" in weights:
        bias = peer.array(weights.get("final_logits_bias", 1, num_rows))[0, rows]
    bias[[PAD_ID, BOS_ID]] = NEVER
    peer.read({"bias": embedding.bias}, {"bias": bias})
    for side in ("encoder", "decoder"):
        stack = getattr(model, side)
        length = model.config.max_length
        norms = {"layer_norm": stack.norm_layer}
        if model.config.embedding_norm:  # mBART has it, and learns the positions.
            norms["layernorm_embedding"] = stack.embedding_norm_layer
            name = f"model.{side}.embed_positions.weight"
            table = weights.get(name, length + _FIRST_POSITION, width)[_FIRST_POSITION:]
        else:
            table = _sinusoids(length, width)
        peer.read({"positions": stack.position.embeddings}, {"positions": table})
        for name, norm in norms.items():
            variables = {"weight": norm.gamma, "bias": norm.beta}
            tensors = {
                kind: weights.get(f"model.{side}.{name}.{kind}", width) for kind in variables
            }
            peer.read(variables, tensors)
    for variables, tensors in block_weights(model, lambda name, shape: weights.get(name, *shape)):
        peer.read(variables, tensors)
