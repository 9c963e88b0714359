"""Export to Hugging Face transformers: the files of a `MarianMTModel` and a `MarianTokenizer`."""

import json
import logging
import math
import os
import pathlib
from typing import Any

import numpy as np
import safetensors.numpy

from keras_transformer import decoding
from keras_transformer.bridges import peer
from keras_transformer.bridges.marian import marian_order, marian_settings, marian_tensors
from keras_transformer.bridges.opus_mt import NEVER
from keras_transformer.data.lookup_tokenizers import SubwordTokenizer
from keras_transformer.data.tokenizer import BOS_ID, EOS_ID, LANGUAGE, PAD_ID, UNK_ID
from keras_transformer.errors import UserError
from keras_transformer.export.formats import export_folder, warn_of_constraints
from keras_transformer.inference.translator import Translator
from keras_transformer.layers.effective_weights import plain_copy
from keras_transformer.layouts import EXPORTS, TRANSFORMERS_CARD

_LOGGER = logging.getLogger(__name__)
_TITLE = EXPORTS["transformers"].title
# The classes of transformers by the place of our layer normalization: Pegasus is a Marian with
# pre-norm. Their layer norms have torch's epsilon; ours is much the same where it is smaller.
_CLASSES = {
    "post": ("marian", "MarianMTModel"),
    "pre": ("pegasus", "PegasusForConditionalGeneration"),
}
_EPSILONS = [1e-5, 1e-6]
# Marian's pieces of our reserved ids. Its decoder begins with padding, so that is our BOS. Our
# padding, which no text has, keeps its probability as a piece that Marian does not use.
_PIECES = {PAD_ID: "<s>", UNK_ID: "<unk>", BOS_ID: "<pad>", EOS_ID: "</s>"}


def export_transformers(translator: Translator, directory: str | os.PathLike) -> pathlib.Path:
    """Writes a model and its tokenizer for transformers; returns `directory`.

    `AutoModelForSeq2SeqLM.from_pretrained(directory)` is a `MarianMTModel`, or for pre-norm a
    `PegasusForConditionalGeneration`, and `AutoTokenizer.from_pretrained(directory)` is a
    `MarianTokenizer`. Neither transformers nor torch is needed to write them. Ids, probabilities
    and greedy answers are ours; docs/runtimes.md says when those of a beam search are. The weights
    are float32.

    Args:
        translator: A `Translator` with SentencePiece vocabularies, on any backend. Its model has
            sinusoidal positions, keys and values of size d_model / num_heads, and ReLU, SiLU or
            GELU, such as those of most presets and of every imported OPUS-MT model.
        directory: A new or empty folder, or an earlier export, which is replaced.

    Raises:
        UserError: If transformers lacks a part of the model or of its vocabulary, the model is an
            `Ensemble`, or the directory holds other files.

    Example:

    >>> from keras_transformer import Translator  # doctest: +SKIP
    >>> translator = Translator.load("runs/en_de")  # doctest: +SKIP
    >>> export_transformers(translator, "exports/en_de")  # doctest: +SKIP

    Reference: Wolf et al. (2020), "Transformers: State-of-the-Art Natural Language Processing".
    """
    with export_folder(translator, directory, "transformers") as aside:
        model, config = plain_copy(translator.model), translator.model.config
        settings = marian_settings(config, norm=[*_CLASSES], norm_epsilon=_EPSILONS)
        is_shared = config.target_vocab_size is None and translator.tokenizers.have_same_ids
        rule = "transformers has models with norm='pre' and one vocabulary for both languages"
        peer.check_supported(is_shared or config.norm == "post", rule, "two vocabularies")
        source, target = translator.source_tokenizer, translator.target_tokenizer
        for side, tokenizer in (("source", source), ("target", target)):
            (aside / f"{side}.spm").write_bytes(_sentencepiece_model(tokenizer))
        ids = [_our_ids(model, tokenizer, is_shared) for tokenizer in (source, target)]
        contents = _settings(translator, settings, ids, is_shared)
        contents["vocab.json"] = _vocabulary(source, ids[0])
        if not is_shared:
            contents["target_vocab.json"] = _vocabulary(target, ids[1])
        for name, content in contents.items():
            text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
            (aside / name).write_text(text, "utf-8")
        (aside / "README.md").write_text(_card(translator.origin or {}), "utf-8")
        tensors = marian_tensors(model, contents["config.json"]["max_position_embeddings"])
        tensors |= _embeddings(model, ids, is_shared)
        if config.norm == "post":
            _begin_with_zeros(tensors, ids[1].index(BOS_ID))
        safetensors.numpy.save_file(tensors, aside / "model.safetensors", {"format": "pt"})
    return pathlib.Path(directory)


def _settings(translator, settings, ids, is_shared):
    """Returns the settings of model, generation and tokenizer by the names of their files."""
    norm, start = translator.model.config.norm, ids[1].index(BOS_ID)
    settings["model_type"], name = _CLASSES[norm]
    special = {"pad_token_id": start, "decoder_start_token_id": start, "eos_token_id": 0}
    special |= {"forced_eos_token_id": None}  # The default is an id.
    longest = translator.max_source_length + translator.extra_length  # with the start
    return {
        "config.json": {
            **settings,
            **special,
            "architectures": [name],
            "_name_or_path": (translator.origin or {}).get("name", ""),
            "vocab_size": len(ids[0]),
            "decoder_vocab_size": len(ids[1]),
            "share_encoder_decoder_embeddings": is_shared,
            "max_position_embeddings": longest,
            # CTranslate2's converter reads these.
            "normalize_before": norm == "pre",
            "normalize_embedding": False,
        },
        "generation_config.json": {
            **special,
            "max_length": longest,
            "bad_words_ids": [[start]],
            **_search_settings(translator.search, ids[1]),
        },
        "tokenizer_config.json": {
            "tokenizer_class": "MarianTokenizer",
            "separate_vocabs": not is_shared,
            "model_max_length": translator.max_source_length,
            # Text such as `</s>` is text, and decoding removes no spaces.
            "split_special_tokens": True,
            "clean_up_tokenization_spaces": False,
        },
    }


def _our_ids(model, tokenizer, is_shared):
    """Returns our ids in the order of Marian's: EOS, unknown, the others, our padding, BOS.

    As in published models, EOS is the first id and Marian's padding, our BOS, the last: some
    programs expect it there. Two vocabularies have it at the same id, and so at an early one.
    """
    others = list(range(max(_PIECES) + 1, tokenizer.vocab_size))
    bias = model.target_embedding.bias
    if bias is None or peer.array(bias)[PAD_ID] > NEVER / 2:  # An imported model has it nowhere.
        others.append(PAD_ID)
    return [EOS_ID, UNK_ID, *others, BOS_ID] if is_shared else [EOS_ID, UNK_ID, BOS_ID, *others]


def _vocabulary(tokenizer, ids):
    pieces = zip(ids, tokenizer.pieces(ids), strict=True)
    return {_PIECES.get(token, piece): number for number, (token, piece) in enumerate(pieces)}


def _sentencepiece_model(tokenizer):
    """Returns the model that splits text; raises a `UserError` if `MarianTokenizer` cannot."""
    # It cuts `>>...<<` off the text, which then lacks the space that SentencePiece puts before it.
    codes = [code for code in tokenizer.symbols if LANGUAGE.match(code)]
    is_cut = bool(codes) and not tokenizer.languages
    if tokenizer.beginning:
        rule = "MarianTokenizer puts no piece of a language before a text"
        raise UserError(f"{rule}. Received: a model with the language {tokenizer.language!r}")
    if isinstance(tokenizer, SubwordTokenizer) or is_cut:
        rule = "MarianTokenizer has SentencePiece vocabularies without symbols such as '>>fra<<'; "
        rule += "'<2fr>' is one that it reads as we do"
        raise UserError(f"{rule}. Received: {type(tokenizer).__name__} with the symbols {codes}")
    return tokenizer.model


def _embeddings(model, ids, is_shared):
    """Returns the embeddings and the bias of the logits by their names."""
    layers, bias = (model.source_embedding, model.target_embedding), model.target_embedding.bias
    values = np.zeros(len(ids[1])) if bias is None else peer.array(bias)[ids[1]]
    tensors = {"final_logits_bias": values[None].astype("float32")}
    names = ["shared"] * 2 if is_shared else ["encoder.embed_tokens", "decoder.embed_tokens"]
    for name, layer, of_side in zip(names, layers, ids, strict=True):
        matrix = peer.array(layer.embeddings)[of_side].take(marian_order(layer.d_model), axis=1)
        tensors[f"model.{name}.weight"] = matrix.astype("float32")
    return tensors


def _begin_with_zeros(tensors: dict[str, np.ndarray], start: int) -> None:
    """Sets the embedding that the decoder begins with to zeros, as programs for Marian expect.

    It is subtracted from all embeddings, which adds a constant to the logits; the biases of the
    first attention add it again.
    """
    is_shared = "model.shared.weight" in tensors
    matrix = tensors[f"model.{'shared' if is_shared else 'decoder.embed_tokens'}.weight"]
    removed = matrix[start].copy()
    matrix -= removed
    removed *= math.sqrt(len(removed))  # Embeddings are scaled.
    for side in ("encoder", "decoder") if is_shared else ("decoder",):
        attention = f"model.{side}.layers.0.self_attn"
        for name in ("q_proj", "k_proj", "v_proj"):
            tensors[f"{attention}.{name}.bias"] += tensors[f"{attention}.{name}.weight"] @ removed
        tensors[f"{attention}.out_proj.bias"] += removed


def _search_settings(search: Any, target_ids: list[int]) -> dict[str, Any]:
    """Returns the settings of `generate`, and logs what it lacks."""
    settings: dict[str, Any] = {}
    others = []
    is_beam = isinstance(search, decoding.BeamSearch) and search.beam_size > 1
    if is_beam:
        settings = {"num_beams": search.beam_size, "length_penalty": search.length_penalty}
        if search.patience or (search.length_normalization == "gnmt" and search.length_penalty):
            message = "The %s ranks by log-probability / length ** %g, without patience: some "
            message += "answers may be others than ours."
            _LOGGER.warning(message, _TITLE, search.length_penalty)
    elif isinstance(search, decoding.Sampling):
        settings = {"do_sample": True, "temperature": search.temperature}
        settings |= {"top_k": search.top_k or 0, "top_p": search.top_p or 1.0}
    for constraint in search.constraints:
        match constraint:
            case decoding.MinimumLength():
                settings["min_new_tokens"] = constraint.length - 1  # EOS is counted here.
            case decoding.NoRepeatNgrams():
                settings["no_repeat_ngram_size"] = constraint.size
            case decoding.SuppressTokens():
                ids = [target_ids.index(token) for token in constraint.ids if token in target_ids]
                settings.setdefault("suppress_tokens", []).extend(ids)
            case decoding.RepetitionPenalty() if is_beam:  # Otherwise it changes plain logits.
                settings["repetition_penalty"] = constraint.penalty
            case _:
                others.append(constraint)
    warn_of_constraints(others, _TITLE)
    return settings


def _card(origin):
    """Returns the card of a model, with its name and license."""
    license = f"license: {origin['license']}\n" if "license" in origin else ""
    head = f"---\nlibrary_name: transformers\npipeline_tag: translation\n{license}---\n"
    return f"{head}\n# {origin.get('name', 'Translator')}\n\n{TRANSFORMERS_CARD}\n"
