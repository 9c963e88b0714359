"""KerasHub's `TransformerEncoder` and `TransformerDecoder`, to and from our blocks.

KerasHub's attention kernels have an axis for the heads: `[width, heads, dim]`, and
`[heads, dim, width]` for the output. Ours have the same numbers in the same order in matrices, so a
copy is a reshape.
"""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.bridges.peer import check_attention, check_built, check_type, import_peer
from keras_transformer.layers import DecoderBlock, EncoderBlock

_CLASSES = {EncoderBlock: "TransformerEncoder", DecoderBlock: "TransformerDecoder"}
# Attentions of our blocks -> KerasHub's name of the attention.
_ATTENTIONS = {
    EncoderBlock: {"attention": "self_attention_layer"},
    DecoderBlock: {"self_attention": "self_attention", "cross_attention": "cross_attention"},
}
# Arguments of our blocks -> KerasHub's.
_SETTINGS = {name: name for name in ("num_heads", "intermediate_dim", "dropout", "activation")}
_SETTINGS["epsilon"] = "layer_norm_epsilon"
_MAPS = {"query": "query", "key": "key", "value": "value", "output": "attention_output"}
_DENSE = {"inner": "feedforward_intermediate_dense", "outer": "feedforward_output_dense"}


def from_keras_hub(layer: keras.layers.Layer, dtype: Any = None) -> EncoderBlock | DecoderBlock:
    """Returns our block with the weights of a KerasHub layer: the two compute the same.

    | keras_hub.layers | here |
    |---|---|
    | `TransformerEncoder` | `EncoderBlock` |
    | `TransformerDecoder`, with or without cross-attention | `DecoderBlock` |

    Masks are the same, `True` = attend. Differs from KerasHub: its `decoder_padding_mask` and
    `decoder_attention_mask` are `padding_mask` and `attention_mask` here, our decoder is always
    causal, and a query that may attend to nothing gets zeros here and an average there.

    Args:
        layer: One of these layers, built, of exactly this class.
        dtype: Dtype policy of the block; None for the layer's.

    Returns:
        A built block, with the layer's rate of dropout at sub-layers and attention weights.

    Raises:
        ValueError: If the layer is another one, or is not built.
        ImportError: If KerasHub is not installed.

    Example:

    >>> import keras_hub
    >>> layer = keras_hub.layers.TransformerEncoder(intermediate_dim=2048, num_heads=8)
    >>> layer.build((None, None, 512))
    >>> block = keras_transformer.bridges.from_keras_hub(layer)
    >>> ops.shape(block(keras.random.normal((2, 5, 512))))
    (2, 5, 512)
    """
    classes = {theirs: ours for ours, theirs in _keras_hub_classes().items()}
    check_type("layer", layer, classes)
    check_built(layer)
    block_class = classes[type(layer)]
    weights = {_short_path(weight): weight for weight in layer.weights}
    d_model = weights["feedforward_layer_norm/gamma"].shape[0]
    head_dim = d_model // layer.num_heads  # Heads that do not divide the width are rounded down.
    block = block_class(
        key_dim=head_dim,
        value_dim=head_dim,
        attention_dropout=layer.dropout,
        norm="pre" if layer.normalize_first else "post",
        use_bias=True,
        dtype=dtype or layer.dtype_policy,
        **{ours: getattr(layer, theirs) for ours, theirs in _SETTINGS.items()},
    )
    shapes = [(None, None, d_model)]
    if "cross_attention/key/kernel" in weights:
        shapes.append((None, None, weights["cross_attention/key/kernel"].shape[0]))
    block.build(*shapes)
    for path, variable in _variables(block).items():
        variable.assign(ops.reshape(weights[path], variable.shape))
    return block


def to_keras_hub(layer: EncoderBlock | DecoderBlock) -> keras.layers.Layer:
    """Returns a KerasHub layer with the weights of our block: the two compute the same.

    Args:
        layer: A built `EncoderBlock` or `DecoderBlock`.

    Returns:
        A new, built `keras_hub.layers.TransformerEncoder` or `TransformerDecoder`. Its attentions
        have biases, zero where ours have none. Its single rate of dropout is our `dropout`.

    Raises:
        ValueError: If the layer is another one, is not built, or has keys or values of another
            size than width / heads.
        ImportError: If KerasHub is not installed.

    Example:

    >>> block = keras_transformer.layers.EncoderBlock(num_heads=8, intermediate_dim=2048)
    >>> block.build((None, None, 512))
    >>> keras_transformer.bridges.to_keras_hub(block).num_heads
    8
    """
    classes = _keras_hub_classes()
    check_type("layer", layer, classes)
    check_built(layer)
    attentions = _attentions(layer)
    for attention in attentions.values():
        head_dim = attention.query_kernel.shape[0] // attention.num_heads
        check_attention(attention, head_dim, "KerasHub")
    theirs = classes[type(layer)](
        normalize_first=layer.norm == "pre",
        dtype=layer.dtype_policy,
        **{theirs: getattr(layer, ours) for ours, theirs in _SETTINGS.items()},
    )
    theirs.build(*((None, None, one.key_kernel.shape[0]) for one in attentions.values()))
    variables = _variables(layer)
    for weight in theirs.weights:
        variable = variables.get(_short_path(weight))
        is_missing = variable is None  # The bias of an attention without biases.
        weight.assign(np.zeros(weight.shape) if is_missing else ops.reshape(variable, weight.shape))
    return theirs


def _keras_hub_classes():
    """Returns our classes -> KerasHub's."""
    layers = import_peer("keras_hub", "oracles").layers
    return {ours: getattr(layers, name) for ours, name in _CLASSES.items()}


def _short_path(weight):
    """Returns the path of a weight inside KerasHub's layer, such as `"self_attention/key/bias"`."""
    parts = weight.path.split("/")
    is_in_attention = parts[-2] in _MAPS.values()
    return "/".join(parts[-3:] if is_in_attention else parts[-2:])


def _attentions(block):
    """Returns the attentions of our block by name, those that it has."""
    attentions = {name: getattr(block, name) for name in _ATTENTIONS[type(block)]}
    return {name: layer for name, layer in attentions.items() if layer is not None}


def _variables(block):
    """Returns the variables of our block by the path that KerasHub gives them."""
    variables = {}

    def add(path, layer, prefix, kinds=("kernel", "bias")):
        variables.update({f"{path}/{kind}": getattr(layer, prefix + kind) for kind in kinds})

    norms = {"feedforward": block.feed_forward_norm}
    for name, attention in _attentions(block).items():
        theirs = _ATTENTIONS[type(block)][name]
        norms[theirs.removesuffix("_layer")] = getattr(block, f"{name}_norm")
        for ours, map_name in _MAPS.items():
            add(f"{theirs}/{map_name}", attention, f"{ours}_")
    for ours, dense in _DENSE.items():
        add(dense, block.feed_forward, f"{ours}_")
    for name, norm in norms.items():
        add(f"{name}_layer_norm", norm, "", ("gamma", "beta"))
    return variables
