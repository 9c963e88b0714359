"""Export to CTranslate2, a fast inference engine for CPUs and GPUs."""

import os
import pathlib

import numpy as np
from keras import ops

from keras_transformer.bridges.peer import activation_name
from keras_transformer.data.tokenizer import BOS_ID, EOS_ID, UNK_ID
from keras_transformer.errors import UserError
from keras_transformer.export.formats import export_folder
from keras_transformer.inference.translator import Translator
from keras_transformer.layers import SinusoidalPositionEncoding
from keras_transformer.layers.effective_weights import plain_copy

# CTranslate2's names of Keras' activations.
_ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "silu": "SWISH"}
_ACTIVATIONS |= {"tanh": "Tanh", "sigmoid": "Sigmoid"}
# CTranslate2's self-attention has these as one linear map.
_MAPS = ("query", "key", "value")


def export_ctranslate2(
    translator: Translator, directory: str | os.PathLike, quantization: str | None = None
) -> pathlib.Path:
    """Writes a CTranslate2 model with vocabularies and the tokenizer's file; returns `directory`.

    `ctranslate2.Translator(str(directory))` translates the pieces of a source, without BOS and EOS,
    into the pieces of its translation. In float32 the log-probabilities equal ours up to rounding,
    and a greedy search, `beam_size=1, min_decoding_length=0`, gives our translations. The beam
    search is CTranslate2's own; docs/runtimes.md lists how it differs. A warning names the
    translator's constraints, which are not exported.

    Args:
        translator: A `Translator`, on any backend.
        directory: A new or empty folder, or an earlier export, which is replaced.
        quantization: None for float32, or a type of CTranslate2: `"int8"`, `"int8_float32"`,
            `"int8_float16"`, `"int8_bfloat16"`, `"int16"`, `"float16"`, `"bfloat16"`.

    Raises:
        UserError: If ctranslate2 is not installed or does not support the model or quantization,
            the model is an `Ensemble`, or the directory holds other files.

    Example:

    >>> from keras_transformer import Translator  # doctest: +SKIP
    >>> translator = Translator.load("runs/en_de")  # doctest: +SKIP
    >>> export_ctranslate2(translator, "exports/en_de", quantization="int8")  # doctest: +SKIP

    Reference: Klein et al. (2020), "Efficient and High-Quality Neural Machine Translation with
    OpenNMT".
    """
    with export_folder(translator, directory, "ctranslate2", quantization=quantization) as aside:
        write_ctranslate2(translator, aside, quantization)
    return pathlib.Path(directory)


def write_ctranslate2(translator: Translator, folder: pathlib.Path, quantization: str | None):
    """Writes a model and its vocabularies into a folder, for `export_ctranslate2`."""
    from ctranslate2 import specs

    specification = _specification(translator, specs)
    specification.validate()
    specification.optimize(quantization=quantization)
    specification.save(str(folder))


def _specification(translator, specs):
    """Returns the CTranslate2 specification of the model, with its weights."""
    model, config = plain_copy(translator.model), translator.model.config
    if config.sliding_window is not None or config.position in ("relative", "rotary"):
        raise UserError(
            "CTranslate2 is given only models with sinusoidal or learned positions and attention "
            f"to all of them; a SavedModel keeps both. Received: position={config.position!r}, "
            f"sliding_window={config.sliding_window}"
        )
    default = config.d_model / config.num_heads
    key_dim, value_dim = config.key_dim or default, config.value_dim or default
    if key_dim != value_dim:
        rule = "CTranslate2 needs heads whose keys and values have the same size"
        raise UserError(f"{rule}. Received: key_dim={key_dim:g}, value_dim={value_dim:g}")
    activation = _ACTIVATIONS[activation_name(config.activation, _ACTIVATIONS)]
    options = {
        "num_heads": config.num_heads,
        "pre_norm": config.norm == "pre",
        "activation": specs.common_spec.Activation[activation],
        "head_dim": None if key_dim == default else int(key_dim),
        "layernorm_embedding": config.embedding_norm,
    }
    encoder = specs.TransformerEncoderSpec(config.num_encoder_layers, **options)
    decoder = specs.TransformerDecoderSpec(config.num_decoder_layers, **options)
    for stack_spec, stack in ((encoder, model.encoder), (decoder, model.decoder)):
        stack_spec.scale_embeddings = True
        stack_spec.position_encodings.encodings = _positions(translator, stack)
        if stack.embedding_norm_layer is not None:
            _set_norm(stack_spec.layernorm_embedding, stack.embedding_norm_layer)
        if stack.norm_layer is not None:
            _set_norm(stack_spec.layer_norm, stack.norm_layer)
    encoder.embeddings[0].weight = _values(model.source_embedding.embeddings)
    for linear in (decoder.embeddings, decoder.projection):
        linear.weight = _values(model.target_embedding.embeddings)
    if model.target_embedding.bias is not None:
        decoder.projection.bias = _values(model.target_embedding.bias)
    for block_spec, block in zip(encoder.layer, model.encoder.blocks, strict=True):
        _set_attention(block_spec.self_attention, block, "attention", _MAPS)
        _set_feed_forward(block_spec.ffn, block)
    for block_spec, block in zip(decoder.layer, model.decoder.blocks, strict=True):
        _set_attention(block_spec.self_attention, block, "self_attention", _MAPS)
        _set_attention(block_spec.attention, block, "cross_attention", _MAPS[:1], _MAPS[1:])
        _set_feed_forward(block_spec.ffn, block)

    specification = specs.TransformerSpec(encoder, decoder)
    source_pieces = translator.source_tokenizer.pieces(range(config.vocab_size))
    pieces = translator.target_tokenizer.pieces(range(config.output_vocab_size))
    specification.register_source_vocabulary(source_pieces)
    specification.register_target_vocabulary(pieces)
    settings = specification.config
    settings.unk_token, settings.eos_token = pieces[UNK_ID], pieces[EOS_ID]
    settings.bos_token = settings.decoder_start_token = pieces[BOS_ID]
    settings.add_source_eos = True
    settings.layer_norm_epsilon = config.norm_epsilon
    return specification


def _positions(translator, stack):
    """Returns the position table `[length, d_model]`; CTranslate2's own sinusoids differ."""
    if translator.model.config.position == "learned":
        return _values(stack.position.embeddings)
    length = translator.max_source_length + translator.extra_length
    sinusoids = SinusoidalPositionEncoding(stack.position.max_wavelength, dtype="float32")
    return _values(sinusoids(ops.zeros((1, length, translator.model.config.d_model)))[0])


def _set_attention(spec, block, name, *maps):
    """Sets an attention and its norm; CTranslate2 joins the maps in each item of `maps`."""
    for linear, names in zip(spec.linear, (*maps, ("output",)), strict=True):
        _set_linear(linear, getattr(block, name), *names)
    _set_norm(spec.layer_norm, getattr(block, f"{name}_norm"))


def _set_feed_forward(spec, block):
    _set_linear(spec.linear_0, block.feed_forward, "inner")
    _set_linear(spec.linear_1, block.feed_forward, "outer")
    _set_norm(spec.layer_norm, block.feed_forward_norm)


def _set_linear(spec, layer, *names):
    """Sets one linear map to several joined maps of our layer; all have a bias, or none has."""
    maps = [getattr(layer, f"{name}_dense") for name in names]
    # CTranslate2's matrices are [output, input].
    spec.weight = np.concatenate([_values(dense.kernel).T for dense in maps])
    if maps[0].bias is not None:
        spec.bias = np.concatenate([_values(dense.bias) for dense in maps])


def _set_norm(spec, norm):
    spec.gamma, spec.beta = _values(norm.gamma), _values(norm.beta)


def _values(variable):
    return ops.convert_to_numpy(ops.cast(variable, "float32"))
