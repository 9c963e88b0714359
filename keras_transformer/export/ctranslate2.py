"""CTranslate2: the same weights in the format of a fast inference engine for CPUs and GPUs."""

import pathlib

import keras
import numpy as np
from keras import ops

from keras_transformer.data.special_tokens import BOS_ID, EOS_ID, UNK_ID
from keras_transformer.errors import UserError
from keras_transformer.export.formats import (
    check_export_packages,
    export_folder,
)
from keras_transformer.export.steps import exportable_model
from keras_transformer.layers import SinusoidalPositionEncoding

# Keras activation -> CTranslate2's name of it.
_ACTIVATIONS = {
    "relu": "RELU",
    "gelu": "GELU",
    "silu": "SWISH",
    "tanh": "Tanh",
    "sigmoid": "Sigmoid",
}


def export_ctranslate2(translator, directory, quantization=None) -> pathlib.Path:
    """Writes a CTranslate2 model: weights, vocabularies, and the tokenizer's own file beside them.

    `ctranslate2.Translator(str(directory))` takes the pieces of a source, without BOS and EOS, and
    gives the pieces of its translation; `tokenizer.model` (or `source_tokenizer.model` and
    `target_tokenizer.model`) is the SentencePiece model that makes the one and joins the other.
    Weights that the model shares are stored once. The log-probabilities are ours to the rounding of
    float32, and so is a greedy search: `beam_size=1, min_decoding_length=0`. CTranslate2's default
    of 1 forbids an empty translation, and moves the probabilities of all first tokens.

    Beam search differs from ours. Hypotheses are divided by `length ** length_penalty`, EOS
    counted, which is our `length_normalization="length"`; for our default, the paper's
    `((5 + length) / 6) ** 0.6`, a `length_penalty` of 0.45 comes closest on sentences of some 15
    tokens. Endings count among the best `beam_size` extensions of a step, not the best
    `2 * beam_size`. It stops when `beam_size * patience` hypotheses have ended, not when no other
    could win: a `patience` of 2 or 3 comes closer. One `max_decoding_length` holds for a batch.
    Constraints are options of its `translate_batch`, where it has them; a warning names those of
    the translator's search.

    Also differs in what no trained model does: a padding id that is generated is looked up like any
    other, and not as zeros.

    Args:
        translator: a `Translator`, on any backend.
        directory: where to; missing, empty, or an earlier export.
        quantization: None for float32, or a type that CTranslate2 offers: `"int8"`,
            `"int8_float32"`, `"int8_float16"`, `"int8_bfloat16"`, `"int16"`, `"float16"`,
            `"bfloat16"`.

    Returns:
        `pathlib.Path`: the directory.

    Raises:
        UserError: if ctranslate2 is not installed, has no such model or quantization, or the
            directory holds anything else.

    Example:

    >>> from keras_transformer import Translator  # doctest: +SKIP
    >>> translator = Translator.load("runs/en_de")  # doctest: +SKIP
    >>> export_ctranslate2(translator, "exports/en_de", quantization="int8")  # doctest: +SKIP

    Reference: Klein et al. (2020), "Efficient and High-Quality Neural Machine Translation with
    OpenNMT".
    """
    check_export_packages("ctranslate2")
    from ctranslate2 import specs

    allowed = specs.model_spec.ACCEPTED_MODEL_TYPES
    if quantization is not None and quantization not in allowed:
        raise UserError(
            f"`quantization` must be None or one of {', '.join(map(repr, allowed))}. "
            f"Received: quantization={quantization!r}"
        )
    specification = _specification(translator, specs)
    with export_folder(directory, "ctranslate2") as aside:
        specification.validate()
        specification.optimize(quantization=quantization)
        specification.save(str(aside))
        translator.tokenizers.save(aside)
    return pathlib.Path(directory)


def _specification(translator, specs):
    """Returns CTranslate2's description of the model, with all weights."""
    model = exportable_model(translator, "CTranslate2 model")
    config = model.config
    options = {
        "num_heads": config.num_heads,
        "pre_norm": config.norm == "pre",
        "activation": _activation(config.activation, specs.common_spec.Activation),
        "head_dim": _head_dim(config),
    }
    encoder = specs.TransformerEncoderSpec(config.num_encoder_layers, **options)
    decoder = specs.TransformerDecoderSpec(config.num_decoder_layers, **options)
    for stack_spec, stack in ((encoder, model.encoder), (decoder, model.decoder)):
        stack_spec.scale_embeddings = True
        stack_spec.position_encodings.encodings = _positions(translator, stack)
        if stack.norm_layer is not None:
            _set_norm(stack_spec.layer_norm, stack.norm_layer)
    encoder.embeddings[0].weight = _values(model.source_embedding.embeddings)
    decoder.embeddings.weight = _values(model.target_embedding.embeddings)
    decoder.projection.weight = _values(model.target_embedding.embeddings)
    for block_spec, block in zip(encoder.layer, model.encoder.blocks, strict=True):
        _set_self_attention(block_spec.self_attention, block.attention, block.attention_norm)
        _set_feed_forward(block_spec.ffn, block)
    for block_spec, block in zip(decoder.layer, model.decoder.blocks, strict=True):
        _set_self_attention(
            block_spec.self_attention, block.self_attention, block.self_attention_norm
        )
        _set_cross_attention(block_spec.attention, block.cross_attention)
        _set_norm(block_spec.attention.layer_norm, block.cross_attention_norm)
        _set_feed_forward(block_spec.ffn, block)

    specification = specs.TransformerSpec(encoder, decoder)
    source_pieces = translator.source_tokenizer.pieces(range(config.vocab_size))
    target_pieces = translator.target_tokenizer.pieces(range(config.output_vocab_size))
    specification.register_source_vocabulary(source_pieces)
    specification.register_target_vocabulary(target_pieces)
    specification.config.unk_token = target_pieces[UNK_ID]
    specification.config.bos_token = target_pieces[BOS_ID]
    specification.config.eos_token = target_pieces[EOS_ID]
    specification.config.decoder_start_token = target_pieces[BOS_ID]
    specification.config.add_source_eos = True
    specification.config.layer_norm_epsilon = config.norm_epsilon
    return specification


def _activation(name, activations):
    activation = keras.activations.get(name)
    for keras_name, peer_name in _ACTIVATIONS.items():
        if activation is keras.activations.get(keras_name):
            return activations[peer_name]
    raise UserError(
        f"CTranslate2 has only the activations {', '.join(map(repr, _ACTIVATIONS))}. "
        f"Received: activation={name!r}"
    )


def _head_dim(config):
    default = config.d_model / config.num_heads
    key_dim, value_dim = config.key_dim or default, config.value_dim or default
    if key_dim != value_dim:
        raise UserError(
            "CTranslate2 has only heads whose keys are as wide as their values. "
            f"Received: key_dim={key_dim:g}, value_dim={value_dim:g}"
        )
    return None if key_dim == default else int(key_dim)


def _positions(translator, stack):
    """Returns the table of positions `[length, d_model]`: CTranslate2's own sinusoids differ."""
    if translator.model.config.position == "learned":
        return _values(stack.position.embeddings)
    length = translator.max_source_length + translator.extra_length
    sinusoids = SinusoidalPositionEncoding(stack.position.max_wavelength, dtype="float32")
    return _values(sinusoids(ops.zeros((1, length, translator.model.config.d_model)))[0])


def _set_self_attention(spec, attention, norm):
    # Queries, keys and values are one map; CTranslate2's matrices are [output, input].
    _set_linear(
        spec.linear[0],
        [attention.query_kernel, attention.key_kernel, attention.value_kernel],
        [attention.query_bias, attention.key_bias, attention.value_bias],
    )
    _set_linear(spec.linear[1], [attention.output_kernel], [attention.output_bias])
    _set_norm(spec.layer_norm, norm)


def _set_cross_attention(spec, attention):
    _set_linear(spec.linear[0], [attention.query_kernel], [attention.query_bias])
    _set_linear(
        spec.linear[1],
        [attention.key_kernel, attention.value_kernel],
        [attention.key_bias, attention.value_bias],
    )
    _set_linear(spec.linear[2], [attention.output_kernel], [attention.output_bias])


def _set_feed_forward(spec, block):
    layer = block.feed_forward
    _set_linear(spec.linear_0, [layer.inner_kernel], [layer.inner_bias])
    _set_linear(spec.linear_1, [layer.outer_kernel], [layer.outer_bias])
    _set_norm(spec.layer_norm, block.feed_forward_norm)


def _set_linear(spec, kernels, biases):
    """Sets a linear map from maps side by side, which either all have a bias or none."""
    spec.weight = np.concatenate([_values(kernel).T for kernel in kernels])
    if biases[0] is not None:
        spec.bias = np.concatenate([_values(bias) for bias in biases])


def _set_norm(spec, norm):
    spec.gamma, spec.beta = _values(norm.gamma), _values(norm.beta)


def _values(variable):
    return ops.convert_to_numpy(ops.cast(variable, "float32"))
