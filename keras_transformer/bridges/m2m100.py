"""Published M2M100 and NLLB-200 models as a `Translator` of two languages: from their files."""

import os
import pathlib
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
from keras_transformer.models.weight_files import check_finite

_SENTENCEPIECE = "sentencepiece.bpe.model"
# fairseq's reserved pieces, in the order of its ids; SentencePiece has three of its own.
_RESERVED, _NUM_OTHERS = ("<s>", "<pad>", "</s>", "<unk>"), 3
# Positions are counted from the id of padding, 1, and one more.
_FIRST_POSITION = 2
_EPSILON = 1e-5  # torch's default
_MOST_UNUSED = 64


def load_m2m100(
    source: str | os.PathLike, source_language: str, target_language: str, dtype: Any = None
) -> Translator:
    """Returns a `Translator` between two languages with a published M2M100 or NLLB-200 model.

    Its tokenizers put the piece of the source language in front of each text, and each answer
    begins with that of the target language; `translator.with_languages` chooses others. The
    sinusoids of these models have other wavelengths than the paper's, so the model has them as
    learned positions. `translator.origin` has the name and the license: NLLB is not for commercial
    use.

    Args:
        source: A folder in transformers' format with `config.json`, `sentencepiece.bpe.model`,
            `special_tokens_map.json`, the weights and, for M2M100, `vocab.json`; or the name of a
            model on the hub, such as `"facebook/nllb-200-distilled-600M"`.
        source_language: Code of the language of the texts: one of the model, such as `"eng_Latn"`
            of NLLB-200, or one of ISO 639 that clearly means it, such as `"en"`.
        target_language: Code of the language to translate into.
        dtype: Dtype policy of the model; None for the global one.

    Raises:
        UserError: If the model has no such language, a file is missing or damaged, files do not fit
            together, or the architecture is another one.

    Example:

    >>> from keras_transformer.bridges import load_m2m100
    >>> translator = load_m2m100("facebook/m2m100_418M", "en", "de")  # doctest: +SKIP
    >>> translator.translate(["A dog runs."])  # doctest: +SKIP

    Reference: Fan et al. (2020), https://arxiv.org/abs/2010.11125; NLLB Team (2022),
    https://arxiv.org/abs/2207.04672.
    """
    folder = find_model(source, "m2m_100")
    path = folder / "config.json"
    settings = read_json(path)
    pieces, languages, model = _read_pieces(folder)
    # Rows of the matrix that no text uses: of masks, and to make their number even.
    pieces += [f"unused{number}" for number in range(_num_unused(settings, len(pieces)))]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    with reading_values(path):
        config = _config(settings)
        generation = read_generation(folder, settings)
        # The tokenizers choose the language. An early stop saves time and changes few answers.
        others = {"forced_bos_token_id": None, "early_stopping": None}
        check_generation({**generation, **others}, vocabulary, start="</s>")
        search = search_of(generation)
    rows = published_rows(vocabulary, start="</s>")
    # Reserved pieces of ours that the vocabulary has too, such as `<s>`, are in no text.
    names = [f"{pieces[n]}_" if pieces[n] in SPECIAL_PIECES else pieces[n] for n in rows[4:]]
    with reading_values(repr(str(folder / _SENTENCEPIECE))):
        tokenizer = MappedTokenizer(model, names, (), languages)
    tokenizers = [tokenizer.with_language(code) for code in (source_language, target_language)]
    weights = PublishedWeights(*read_weights(folder))
    num_positions = 2 * (config.max_length or 0) * config.d_model
    weights.check(config, [len(pieces)], num_computed=num_positions + config.vocab_size)
    transformer = Transformer(config, dtype=dtype)
    _copy(weights, transformer, rows)
    check_finite(transformer, folder)
    origin = origin_of(source, folder, settings)
    return Translator(transformer, *tokenizers, search, origin=origin)


def _read_pieces(folder: pathlib.Path):
    """Returns the published pieces in the order of their ids, the languages, and SentencePiece's.

    M2M100 has the ids in `vocab.json`. NLLB-200 has fairseq's reserved ones, then SentencePiece's.
    The languages follow.
    """
    for name in (_SENTENCEPIECE, "special_tokens_map.json"):
        if not (folder / name).is_file():
            raise UserError(f"{str(folder)!r} lacks {name}.")
    model = read_small_file(folder / _SENTENCEPIECE, LARGEST_VOCABULARY)
    special = read_json(folder / "special_tokens_map.json")
    languages = special.get("additional_special_tokens")
    if not isinstance(languages, list) or not all(isinstance(code, str) for code in languages):
        path = str(folder / "special_tokens_map.json")
        raise UserError(f"{path!r} must list the languages in `additional_special_tokens`.")
    if (folder / "vocab.json").is_file():
        vocabulary = read_vocabulary(folder / "vocab.json")
        pieces = sorted(vocabulary, key=vocabulary.__getitem__)
    else:
        with reading_values(repr(str(folder / _SENTENCEPIECE))):
            processor = load_processor(model)
        numbers = range(_NUM_OTHERS, processor.get_piece_size())
        # Fairseq has four reserved ids, one more than SentencePiece, and a piece for masks.
        pieces = [*_RESERVED, *map(processor.id_to_piece, numbers)]
    return [*pieces, *languages], languages, model


def _num_unused(settings, num_pieces):
    size = settings.get("vocab_size")
    if not isinstance(size, int) or not num_pieces <= size < num_pieces + _MOST_UNUSED:
        rule = f"config.json must have a `vocab_size` of the {num_pieces:,} pieces and languages"
        raise UserError(f"{rule} or a few more. Received: vocab_size={size!r}")
    return size - num_pieces


def _config(settings) -> TransformerConfig:
    activation = settings.get("activation_function", "relu")
    rule = f"`activation_function` must be one of {', '.join(map(repr, ACTIVATIONS))}"
    peer.check_supported(activation in ACTIVATIONS, rule, activation_function=activation)
    for name in ("scale_embedding", "tie_word_embeddings"):
        value, rule = settings.get(name, True), f"Models with {name}=True can be imported"
        peer.check_supported(value is True, rule, **{name: value})
    sizes = model_sizes({**settings, "vocab_size": settings["vocab_size"] + 1})  # BOS has a row.
    return TransformerConfig(
        activation=ACTIVATIONS[activation],
        norm="pre",
        position="learned",
        max_length=settings.get("max_position_embeddings", 1024),
        use_bias=True,
        output_bias=True,
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
    matrix = peer.array(weights.get("model.shared.weight", num_rows, width))[rows]
    embedding = model.target_embedding
    peer.read({"embeddings": embedding.embeddings}, {"embeddings": matrix})
    bias = np.zeros(len(rows), "float32")
    bias[[PAD_ID, BOS_ID]] = NEVER
    peer.read({"bias": embedding.bias}, {"bias": bias})
    for side in ("encoder", "decoder"):
        stack = getattr(model, side)
        table = _sinusoids(model.config.max_length, width)
        norm = {
            name: weights.get(f"model.{side}.layer_norm.{theirs}", width)
            for name, theirs in (("gamma", "weight"), ("beta", "bias"))
        }
        variables = {"gamma": stack.norm_layer.gamma, "beta": stack.norm_layer.beta}
        peer.read(variables, norm)
        peer.read({"positions": stack.position.weights[0]}, {"positions": table})
    for variables, tensors in block_weights(model, lambda name, shape: weights.get(name, *shape)):
        peer.read(variables, tensors)
