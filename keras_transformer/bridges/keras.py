"""Conversions of Keras' `MultiHeadAttention` and KerasHub's encoder and decoder blocks.

Their attention kernels have an axis for the heads: `[width, heads, dim]`, and `[heads, dim, width]`
for the output. Ours are matrices of the same values in the same order, so a copy is a reshape.
"""

from typing import Any

import keras

from keras_transformer.bridges import peer
from keras_transformer.layers import DecoderBlock, EncoderBlock, MultiHeadAttention
from keras_transformer.layers.effective_weights import plain_copy

_SETTINGS = ("num_heads", "key_dim", "value_dim", "dropout", "use_bias", "sliding_window", "seed")
_SETTINGS += ("kernel_initializer", "bias_initializer", "kernel_regularizer")
# Settings of Keras' layer that ours lacks, with the values at which they have no effect.
_UNSUPPORTED = {
    **dict.fromkeys(("output_shape", "bias_regularizer", "activity_regularizer"), (None,)),
    **dict.fromkeys(("kernel_constraint", "bias_constraint"), (None,)),
    "attention_axes": (None, (1,), [1]),
    "use_gate": (False,),
}
_CLASSES = {EncoderBlock: "TransformerEncoder", DecoderBlock: "TransformerDecoder"}
# KerasHub's names of our blocks' arguments.
_SAME = ("num_heads", "intermediate_dim", "dropout", "activation")
_BLOCK_SETTINGS = {**{name: name for name in _SAME}, "epsilon": "layer_norm_epsilon"}


def from_keras(layer: keras.layers.MultiHeadAttention, dtype: Any = None) -> MultiHeadAttention:
    """Returns our attention layer with the weights of Keras' layer; both compute the same.

    Difference: a query that may attend to no key gets zeros here, in Keras the mean of all values.

    Args:
        layer: A built `keras.layers.MultiHeadAttention`, not a subclass.
        dtype: Dtype policy of the copy; None for the layer's.

    Raises:
        ValueError: If the layer is another one, or has a setting or weights that ours lacks.

    Example:

    >>> layer = keras.layers.MultiHeadAttention(num_heads=8, key_dim=64, sliding_window=16)
    >>> layer.build((None, None, 512), (None, None, 512))
    >>> keras_transformer.bridges.from_keras(layer).sliding_window
    16
    """
    peer.check_built("layer", layer, [keras.layers.MultiHeadAttention])
    config = layer.get_config()
    for name, allowed in _UNSUPPORTED.items():
        rule = f"`{name}` must be {allowed[0]!r}: our layer has none"
        peer.check_supported(config.get(name) in allowed, rule, **{name: config.get(name)})
    settings = {name: config[name] for name in _SETTINGS}
    ours = MultiHeadAttention(**settings, dtype=dtype or layer.dtype_policy)
    weights = _weights(layer)
    widths = [weights[f"{name}/kernel"].shape[0] for name in ("query", "value", "key")]
    ours.build(*((None, None, width) for width in widths))
    _read(ours, weights)
    return ours


def to_keras(layer: MultiHeadAttention) -> keras.layers.MultiHeadAttention:
    """Returns Keras' attention layer with the weights of ours; both compute the same.

    Args:
        layer: A built `MultiHeadAttention` with the default attention and no `position`.

    Raises:
        ValueError: If the layer is another one.

    Example:

    >>> layer = keras_transformer.layers.MultiHeadAttention(num_heads=8, key_dim=64)
    >>> layer.build((None, None, 512), (None, None, 512))
    >>> keras_transformer.bridges.to_keras(layer).count_params()
    1048576
    """
    peer.check_built("layer", layer, [MultiHeadAttention])
    layer = plain_copy(layer)
    peer.check_function(layer, "Keras")
    settings = {name: getattr(layer, name) for name in _SETTINGS}
    theirs = keras.layers.MultiHeadAttention(**settings, dtype=layer.dtype_policy)
    kernels = layer.query_dense.kernel, layer.value_dense.kernel, layer.key_dense.kernel
    theirs.build(*((None, None, kernel.shape[0]) for kernel in kernels))
    peer.write(peer.variables(layer, "Keras"), _weights(theirs))
    return theirs


def from_keras_hub(layer: keras.layers.Layer, dtype: Any = None) -> EncoderBlock | DecoderBlock:
    """Returns our block with the weights of a KerasHub layer; both compute the same.

    A `keras_hub.layers.TransformerEncoder` becomes an `EncoderBlock`; a `TransformerDecoder`, with
    or without cross-attention, a `DecoderBlock`. docs/bridges.md lists the differences.

    Args:
        layer: A built layer of one of these classes, not of a subclass.
        dtype: Dtype policy of the block; None for the layer's.

    Raises:
        ValueError: If the layer is another one, or has the weights of LoRA or quantization.
        ImportError: If KerasHub is not installed.

    Example:

    >>> import keras_hub
    >>> layer = keras_hub.layers.TransformerEncoder(intermediate_dim=2048, num_heads=8)
    >>> layer.build((None, None, 512))
    >>> block = keras_transformer.bridges.from_keras_hub(layer)
    """
    classes = {theirs: ours for ours, theirs in _keras_hub_classes().items()}
    peer.check_built("layer", layer, classes)
    block_class = classes[type(layer)]
    weights = _weights(layer)
    d_model = weights["feedforward_layer_norm/gamma"].shape[0]
    head_dim = d_model // layer.num_heads  # Rounded down, as in KerasHub.
    block = block_class(
        key_dim=head_dim,
        value_dim=head_dim,
        attention_dropout=layer.dropout,
        norm="pre" if layer.normalize_first else "post",
        use_bias=True,
        dtype=dtype or layer.dtype_policy,
        **{ours: getattr(layer, theirs) for ours, theirs in _BLOCK_SETTINGS.items()},
    )
    shapes = [(None, None, d_model)]
    if "cross_attention/key/kernel" in weights:
        shapes.append((None, None, weights["cross_attention/key/kernel"].shape[0]))
    block.build(*shapes)
    _read(block, weights)
    return block


def to_keras_hub(layer: EncoderBlock | DecoderBlock) -> keras.layers.Layer:
    """Returns a KerasHub layer with the weights of our block; both compute the same.

    Its attentions have biases, which are zero if ours have none. Its only dropout rate is our
    `dropout`.

    Args:
        layer: A built `EncoderBlock` or `DecoderBlock`.

    Raises:
        ValueError: If the layer is another one, or KerasHub lacks its attention.
        ImportError: If KerasHub is not installed.

    Example:

    >>> block = keras_transformer.layers.EncoderBlock(num_heads=8, intermediate_dim=2048)
    >>> block.build((None, None, 512))
    >>> keras_transformer.bridges.to_keras_hub(block).num_heads
    8
    """
    classes = _keras_hub_classes()
    peer.check_built("layer", layer, classes)
    layer = plain_copy(layer)
    names = peer.sublayer_names(type(layer), "Keras")
    attentions = list(filter(None, peer.attentions(layer, names)))
    for attention in attentions:
        head_dim = attention.query_dense.kernel.shape[0] // attention.num_heads
        peer.check_attention(attention, head_dim, "KerasHub")
    theirs = classes[type(layer)](
        normalize_first=layer.norm == "pre",
        dtype=layer.dtype_policy,
        **{theirs: getattr(layer, ours) for ours, theirs in _BLOCK_SETTINGS.items()},
    )
    widths = (attention.key_dense.kernel.shape[0] for attention in attentions)
    theirs.build(*((None, None, width) for width in widths))
    peer.write(peer.variables(layer, "Keras"), _weights(theirs))
    return theirs


def _keras_hub_classes():
    """Returns a dict from our classes to KerasHub's."""
    layers = peer.import_peer("keras_hub", "oracles").layers
    return {ours: getattr(layers, name) for ours, name in _CLASSES.items()}


def _weights(layer):
    """Returns the weights of a Keras layer by path."""
    return {weight.path.removeprefix(f"{layer.path}/"): weight for weight in layer.weights}


def _read(ours, weights):
    variables = peer.variables(ours, "Keras")
    others = sorted(weights.keys() - variables.keys())
    rule = "A layer may have only kernels, biases and norms, not weights of LoRA or quantization"
    peer.check_supported(not others, rule, weights=others)
    peer.read(variables, weights)
