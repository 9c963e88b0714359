"""Conversions of transformers' `MarianMTModel` to and from our `Transformer`.

Marian is the paper's model with biases in the attentions and another order of channels: its
sinusoids are `[sin_0, sin_1, ..., cos_0, cos_1, ...]`, ours `[sin_0, cos_0, sin_1, cos_1, ...]`.
The order of the residual stream's channels does not change the output if all weights use the same:
so a copy permutes the stream's axis of every weight.
"""

import functools
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from keras_transformer.bridges import peer
from keras_transformer.checks import check_positive_integer
from keras_transformer.data.tokenizer import BOS_ID, EOS_ID, PAD_ID
from keras_transformer.layers.effective_weights import plain_copy
from keras_transformer.models import Transformer, TransformerConfig

# Keras' names of Marian's activation functions; Marian accepts them too.
ACTIVATIONS = {"relu": "relu", "swish": "silu", "silu": "silu", "gelu": "gelu"}
_SETTINGS = {
    "scale_embedding": True,
    "share_encoder_decoder_embeddings": True,
    "tie_word_embeddings": True,
    "pad_token_id": PAD_ID,
    "encoder_layerdrop": 0,
    "decoder_layerdrop": 0,
}
# Marian's names of our settings; some have one for the encoder and one for the decoder.
_SAME = ("vocab_size", "d_model", "dropout", "attention_dropout", "activation_dropout")
NAMES = {
    **{name: (name,) for name in _SAME},
    "num_encoder_layers": ("encoder_layers",),
    "num_decoder_layers": ("decoder_layers",),
    "num_heads": ("encoder_attention_heads", "decoder_attention_heads"),
    "intermediate_dim": ("encoder_ffn_dim", "decoder_ffn_dim"),
}
_SIDES = ("encoder", "decoder")
# Marian's names of our layers' variables.
_KINDS = {"kernel": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"}
# The axis of the residual stream in our variables that have one, by the end of their paths.
_STREAM_AXES = {
    r".*/((query|key|value|inner)/kernel|(output|outer)/bias|gamma|beta)": 0,
    r".*/((output|outer)/kernel|embeddings)": 1,
}


def from_marian(model: Any, dtype: Any = None) -> Transformer:
    """Returns a `Transformer` with the weights of a `transformers.MarianMTModel`.

    The logits at real positions equal Marian's. Our model finds padding by its id, 0, and gives it
    a zero embedding; Marian takes an `attention_mask`, `True` = attend.

    Args:
        model: A `MarianMTModel` with `scale_embedding`, `share_encoder_decoder_embeddings` and
            `tie_word_embeddings`, `pad_token_id=0`, another `decoder_start_token_id`, no layer
            dropout, and equal numbers of heads and feed-forward widths in encoder and decoder.
        dtype: Dtype policy of the model; None for the dtype of Marian's weights.

    Raises:
        ValueError: If the model is another one, such as a published one (see `load_opus_mt`).
        ImportError: If transformers or torch is not installed.

    Example:

    >>> from keras_transformer.bridges import from_marian, to_marian
    >>> model = keras_transformer.Transformer.from_preset("tiny", vocab_size=1000, norm="post")
    >>> ids = np.array([[5, 6, 3]], dtype="int32")
    >>> ops.shape(from_marian(to_marian(model))({"source": ids, "target": ids}))
    (1, 3, 1000)
    """
    transformers = peer.import_peer("transformers", "oracles")
    peer.import_peer("torch", "oracles")
    peer.check_type("model", model, [transformers.MarianMTModel])
    _check_marian(model)
    settings = {}
    for ours, names in NAMES.items():
        values = [getattr(model.config, name) for name in names]
        settings[ours] = peer.single(names[0].removeprefix("encoder_"), values)
    config = TransformerConfig(
        activation=ACTIVATIONS[model.config.activation_function],
        use_bias=True,
        output_bias=bool(model.final_logits_bias.any()),
        norm_epsilon=peer.single("eps", (norm.eps for norm in _norms(model))),
        **settings,
    )
    dtype = dtype or str(model.lm_head.weight.dtype).removeprefix("torch.")
    transformer = Transformer(config, dtype=dtype, initialize=False)
    to_ours = np.argsort(marian_order(config.d_model))
    for variables, weights in _weights(transformer, model):
        peer.read(variables, weights, functools.partial(reordered, order=to_ours))
    return transformer


def to_marian(model: Transformer, max_length: int = 1024) -> Any:
    """Returns a `transformers.MarianMTModel` with the weights of a `Transformer`.

    It is on the CPU and in evaluation mode. Its attentions have biases, which are zero if ours have
    none. Marian's configuration does not store the epsilon of the layer norms: after
    `save_pretrained` and `from_pretrained` it is torch's 1e-5.

    Args:
        model: A `Transformer` with one vocabulary, post-norm, sinusoidal positions, keys and values
            of size d_model / num_heads, and ReLU, SiLU or GELU.
        max_length: Maximum length of a sequence, the size of the new model's table of positions.

    Raises:
        ValueError: If the model is another one, or is not built.
        ImportError: If transformers or torch is not installed.

    Example:

    >>> model = keras_transformer.Transformer.from_preset("tiny", vocab_size=1000, norm="post")
    >>> keras_transformer.bridges.to_marian(model).config.d_model
    128
    """
    transformers = peer.import_peer("transformers", "oracles")
    torch = peer.import_peer("torch", "oracles")
    peer.check_built("model", model, [Transformer])
    model = plain_copy(model)
    check_positive_integer("max_length", max_length)
    config = model.config
    marian_config = transformers.MarianConfig(
        max_position_embeddings=max_length,
        decoder_start_token_id=BOS_ID,
        bos_token_id=BOS_ID,
        eos_token_id=EOS_ID,
        forced_eos_token_id=None,
        **marian_settings(config, norm=["post"], target_vocab_size=[None]),
    )
    dtype = getattr(torch, model.encoder.variable_dtype)
    marian = transformers.MarianMTModel(marian_config).to(dtype)
    for norm in _norms(marian):
        norm.eps = config.norm_epsilon
    # Marian computes its table in float32, whatever the dtype.
    for table in _position_tables(marian):
        table.copy_(torch.as_tensor(_sinusoids(*table.shape)))
    to_theirs = marian_order(config.d_model)
    for variables, weights in _weights(model, marian):
        peer.write(variables, weights, functools.partial(reordered, order=to_theirs))
    return marian.eval()


def marian_settings(config: TransformerConfig, **allowed: list) -> dict[str, Any]:
    """Returns Marian's settings of a model; raises a `UserError` if Marian lacks a part of it.

    `allowed` has further settings, with their allowed values.
    """
    dims = [None, config.d_model / config.num_heads]
    allowed |= {"position": ["sinusoidal"], "sliding_window": [None], "embedding_norm": [False]}
    rule = "Marian has only models with"
    _check_settings(config, rule, {**allowed, "key_dim": dims, "value_dim": dims})
    sizes = {name: getattr(config, ours) for ours, names in NAMES.items() for name in names}
    activation = peer.activation_name(config.activation, ("relu", "silu", "gelu"))
    return {**_SETTINGS, **sizes, "activation_function": activation}


def marian_tensors(model: Transformer, length: int) -> dict[str, np.ndarray]:
    """Returns the weights, but for embeddings, by their names in transformers' files, in float32.

    Args:
        model: A model without quantization and LoRA that `marian_settings` allows.
        length: Number of positions in the tables that the files of a pre-norm model have.
    """
    d_model, tensors = model.config.d_model, dict[str, np.ndarray]()
    reorder = functools.partial(reordered, order=marian_order(d_model))

    def tensor_of(name, shape):
        return tensors.setdefault(name, np.zeros(shape or d_model, "float32"))

    for variables, weights in block_weights(model, tensor_of):
        peer.write(variables, weights, reorder)
    for side in _SIDES:
        if (norm := getattr(model, side).norm_layer) is not None:
            variables = {"weight": norm.gamma, "bias": norm.beta}
            weights = {
                kind: tensor_of(f"model.{side}.layer_norm.{kind}", None) for kind in variables
            }
            peer.write(variables, weights, reorder)
            table = _sinusoids(length, d_model).astype("float32")
            tensors[f"model.{side}.embed_positions.weight"] = table
    return tensors


def marian_order(d_model):
    """Returns the channel of our residual stream for each channel of Marian's."""
    return np.concatenate([np.arange(0, d_model, 2), np.arange(1, d_model, 2)])


def _sinusoids(length, d_model):
    """Returns Marian's table of positions, sines first."""
    angles = np.arange(length)[:, None] / 10_000 ** (np.arange(0, d_model, 2) / d_model)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


def _position_tables(marian):
    return [getattr(marian.model, side).embed_positions.weight.detach() for side in _SIDES]


def _norms(marian):
    import torch

    return [module for module in marian.modules() if isinstance(module, torch.nn.LayerNorm)]


def block_weights(transformer: Transformer, tensor_of: Callable) -> Iterator[tuple[dict, dict]]:
    """Yields our variables of each block by path, and Marian's tensors in the same layout.

    Args:
        transformer: Our model.
        tensor_of: Returns Marian's tensor with a name in its files, such as
            `"model.encoder.layers.0.fc1.weight"`, and a shape.
    """
    for side in _SIDES:
        for number, block in enumerate(getattr(transformer, side).blocks):
            variables, tensors = peer.variables(block, "Marian"), {}
            for path, variable in variables.items():
                *names, kind = path.split("/")
                name = ".".join([f"model.{side}.layers.{number}", *names, _KINDS[kind]])
                if variable is None:  # A bias that ours lacks, as wide as the outputs of its map.
                    tensors[path] = tensor_of(name, None)
                elif kind == "kernel":
                    tensors[path] = tensor_of(name, variable.shape[::-1]).T
                else:
                    tensors[path] = tensor_of(name, variable.shape)
            yield variables, tensors


def _weights(transformer, marian):
    """Yields our variables and Marian's tensors by path: of the embedding, then of each block."""
    state = marian.state_dict()

    def tensor_of(name, shape):
        rule = "A MarianMTModel must have the weights of its class, not those of LoRA"
        peer.check_supported(name in state, rule, f"a model without {name!r}")
        return state[name]

    embedding = transformer.target_embedding
    names = "model.shared.weight", "final_logits_bias"
    variables = dict(zip(names, (embedding.embeddings, embedding.bias), strict=True))
    yield variables, {name: state[name] for name in names}
    yield from block_weights(transformer, tensor_of)


def reordered(variable, values, order):
    """Returns the values of a variable with the channels of the residual stream in `order`."""
    for paths, axis in _STREAM_AXES.items():
        if re.fullmatch(paths, variable.path):
            return values.take(order, axis)
    return values


def _check_marian(model):
    config = model.config
    allowed = {name: [value] for name, value in _SETTINGS.items()}
    _check_settings(config, "A MarianMTModel must have", allowed)
    start, activation = config.decoder_start_token_id, config.activation_function
    rule = "`decoder_start_token_id` must be another id than padding, which is masked here"
    peer.check_supported(start != config.pad_token_id, rule, decoder_start_token_id=start)
    rule = f"`activation_function` must be one of {', '.join(map(repr, ACTIVATIONS))}"
    peer.check_supported(activation in ACTIVATIONS, rule, activation_function=activation)
    inner = model.model
    tied = inner.encoder.embed_tokens, inner.decoder.embed_tokens, model.lm_head
    are_shared = all(module.weight.equal(inner.shared.weight) for module in tied)
    rule = "Encoder, decoder and logits must have the embedding matrix of `model.shared`"
    peer.check_supported(are_shared, rule, "another matrix in `embed_tokens` or `lm_head`")
    for table in _position_tables(model):
        values = peer.array(table)
        is_marians = np.allclose(values, _sinusoids(*values.shape), atol=1e-2)
        rule = "Positions must be Marian's sinusoids"
        peer.check_supported(is_marians, rule, "embed_positions with other values")


def _check_settings(config, rule, allowed):
    for name, values in allowed.items():
        received, choices = getattr(config, name), " or ".join(map(repr, values))
        peer.check_supported(received in values, f"{rule} {name}={choices}", **{name: received})
