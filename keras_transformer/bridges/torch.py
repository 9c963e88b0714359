"""Conversions of the attention and Transformer modules of `torch.nn`."""

from typing import Any

import keras

from keras_transformer.bridges import peer
from keras_transformer.layers import (
    Decoder,
    DecoderBlock,
    Encoder,
    EncoderBlock,
    MultiHeadAttention,
)
from keras_transformer.layers.effective_weights import plain_copy

_BLOCK_OF_STACK = {Encoder: EncoderBlock, Decoder: DecoderBlock}
_MODULES: dict[type, str] = {
    MultiHeadAttention: "MultiheadAttention",
    EncoderBlock: "TransformerEncoderLayer",
    DecoderBlock: "TransformerDecoderLayer",
    Encoder: "TransformerEncoder",
    Decoder: "TransformerDecoder",
}
_INPUTS = ("q_proj", "k_proj", "v_proj")


def from_torch(module: Any, dtype: Any = None) -> keras.layers.Layer:
    """Returns our layer with the weights of a torch module; both compute the same.

    A `MultiheadAttention` becomes a `MultiHeadAttention`; a `TransformerEncoderLayer` or
    `TransformerDecoderLayer` an `EncoderBlock` or `DecoderBlock`; a `TransformerEncoder` or
    `TransformerDecoder` an `Encoder` or `Decoder` without positions. Boolean masks are inverted:
    `True` hides a position in torch and shows it here. docs/bridges.md lists other differences.

    Args:
        module: A module of one of these classes, not of a subclass.
        dtype: Dtype policy of the layer; None for the dtype of the module's weights.

    Raises:
        ValueError: If our layers lack a feature of the module, such as `add_bias_kv`.
        ImportError: If torch is not installed.

    Example:

    >>> import torch
    >>> module = torch.nn.TransformerEncoderLayer(d_model=512, nhead=8, batch_first=True)
    >>> block = keras_transformer.bridges.from_torch(module)
    """
    torch = peer.import_peer("torch", "torch")
    classes = {getattr(torch.nn, name): ours for ours, name in _MODULES.items()}
    peer.check_type("module", module, classes)
    layer_class = classes[type(module)]
    dtype = dtype or str(next(module.parameters()).dtype).removeprefix("torch.")
    if layer_class is MultiHeadAttention:
        return _import_attention(module, dtype)
    if layer_class in _BLOCK_OF_STACK:
        return _import_stack(layer_class, module, dtype)
    return _import_block(layer_class, module, dtype)


def to_torch(layer: keras.layers.Layer) -> Any:
    """Returns a torch module with the weights of our layer; both compute the same.

    Args:
        layer: A built layer of a class that `from_torch` returns, not of a subclass.

    Returns:
        A new module on the CPU, batch-first and in evaluation mode. If the attentions of a block
        have no biases, the module's are zero. torch has no dropout of a stack's inputs. Quantized
        weights are dequantized, and LoRA is merged.

    Raises:
        ValueError: If the layer is not built, or has a feature that torch lacks.
        ImportError: If torch is not installed.

    Example:

    >>> block = keras_transformer.layers.EncoderBlock(num_heads=8, intermediate_dim=2048)
    >>> block.build((None, None, 512))
    >>> keras_transformer.bridges.to_torch(block).linear1.out_features
    2048
    """
    peer.import_peer("torch", "torch")
    peer.check_built("layer", layer, _MODULES)
    layer = plain_copy(layer)
    if type(layer) is MultiHeadAttention:
        return _export_attention(layer).eval()
    if type(layer) in _BLOCK_OF_STACK:
        return _export_stack(layer).eval()
    return _export_block(layer).eval()


def _import_attention(module, dtype):
    _check_attention(module)
    layer = MultiHeadAttention(
        module.num_heads,
        key_dim=module.head_dim,
        use_bias=module.in_proj_bias is not None,
        dropout=module.dropout,
        dtype=dtype,
    )
    widths = (module.embed_dim, module.vdim, module.kdim)
    layer.build(*((None, None, width) for width in widths))
    read(layer, module)
    return layer


def _export_attention(layer):
    import torch

    d_model = layer.query_dense.kernel.shape[0]
    peer.check_attention(layer, d_model / layer.num_heads, "torch")
    module = torch.nn.MultiheadAttention(
        d_model,
        layer.num_heads,
        dropout=layer.dropout,
        bias=layer.use_bias,
        kdim=layer.key_dense.kernel.shape[0],
        vdim=layer.value_dense.kernel.shape[0],
        batch_first=True,
        dtype=getattr(torch, layer.variable_dtype),
    )
    write(layer, module)
    return module


def _import_block(block_class, module, dtype):
    names = peer.sublayer_names(block_class, "torch").values()
    attentions = peer.attentions(module, names)
    norms = [getattr(module, name) for name in names if name.startswith("norm")]
    for attention in attentions:
        _check_attention(attention)
        widths = {name: getattr(attention, name) for name in ("embed_dim", "kdim", "vdim")}
        rule = "The attentions of a block must have keys and values as wide as the block"
        peer.check_supported(len(set(widths.values())) == 1, rule, **widths)
    for norm in norms:
        _check_norm(norm)
    dropouts = [getattr(module, f"dropout{i + 1}") for i in range(len(norms))]
    block = block_class(
        num_heads=peer.single("num_heads", (layer.num_heads for layer in attentions)),
        intermediate_dim=module.linear1.out_features,
        dropout=peer.single("dropout", (dropout.p for dropout in dropouts)),
        attention_dropout=peer.single("dropout", (layer.dropout for layer in attentions)),
        activation_dropout=module.dropout.p,
        activation=_import_activation(module.activation),
        norm="pre" if module.norm_first else "post",
        use_bias=module.self_attn.in_proj_bias is not None,
        epsilon=peer.single("layer_norm_eps", (norm.eps for norm in norms)),
        dtype=dtype,
    )
    block.build(*[(None, None, module.linear1.in_features)] * len(attentions))
    read(block, module)
    return block


def _export_block(block):
    import torch

    names = peer.sublayer_names(type(block), "torch")
    attentions = peer.attentions(block, names)
    rule = "A DecoderBlock must have cross-attention, as torch's has"
    has_all = None not in attentions
    peer.check_supported(has_all, rule, "a block that was built without the encoder's shape")
    d_model, *encoder_widths = [layer.key_dense.kernel.shape[0] for layer in attentions]
    for attention in attentions:
        peer.check_attention(attention, d_model / block.num_heads, "torch")
    rule = "A decoder block must be as wide as the encoder, as torch's is"
    received = f"width {d_model}, encoder_outputs of width {encoder_widths}"
    peer.check_supported(all(width == d_model for width in encoder_widths), rule, received)
    module = getattr(torch.nn, _MODULES[type(block)])(
        d_model,
        block.num_heads,
        block.intermediate_dim,
        dropout=block.dropout,
        activation=peer.activation_name(block.activation, ("relu", "gelu")),
        layer_norm_eps=block.epsilon,
        batch_first=True,
        norm_first=block.norm == "pre",
        dtype=getattr(torch, block.variable_dtype),
    )
    module.dropout.p = block.activation_dropout
    for attention in peer.attentions(module, names.values()):
        attention.dropout = block.attention_dropout
    write(block, module)
    return module


def _import_stack(stack_class, module, dtype):
    import torch

    block_class = _BLOCK_OF_STACK[stack_class]
    for layer in module.layers:
        peer.check_type("layers", layer, [getattr(torch.nn, _MODULES[block_class])])
    has_norm = module.norm is not None
    if has_norm:
        _check_norm(module.norm)
    stack = stack_class(
        [_import_block(block_class, layer, dtype) for layer in module.layers],
        position=None,
        dropout=0.0,
        final_norm=has_norm,
        epsilon=module.norm.eps if has_norm else 1e-6,
        dtype=dtype,
    )
    shape = (None, None, module.layers[0].linear1.in_features)
    stack.build(*[shape] * (1 if stack_class is Encoder else 2))
    if has_norm:
        read(stack, module)
    return stack


def _export_stack(stack):
    import torch

    for block in stack.blocks:
        peer.check_type("blocks", block, [_BLOCK_OF_STACK[type(stack)]])
    rule = "`position` must be None: torch's stacks add no positions"
    peer.check_supported(stack.position is None, rule, position=stack.position)
    rule = "torch's stacks have no norm of the embedding"
    peer.check_supported(not stack.embedding_norm, rule, embedding_norm=stack.embedding_norm)
    layers = [_export_block(block) for block in stack.blocks]
    norm = None
    if stack.norm_layer is not None:
        d_model = layers[0].linear1.in_features
        norm = torch.nn.LayerNorm(
            d_model, eps=stack.epsilon, dtype=getattr(torch, stack.variable_dtype)
        )
    # With nested tensors, torch would remove padding from the outputs.
    options = {"enable_nested_tensor": False} if type(stack) is Encoder else {}
    module = getattr(torch.nn, _MODULES[type(stack)])(layers[0], 1, norm, **options)
    module.layers = torch.nn.ModuleList(layers)
    module.num_layers = len(layers)
    if norm is not None:
        write(stack, module)
    return module


def read(layer, module):
    """Sets the weights of our layer to those of a torch module."""
    variables = peer.variables(layer, "torch")
    peer.read(variables, tensors(module, variables))


def write(layer, module):
    """Sets the weights of a torch module to those of our layer."""
    variables = peer.variables(layer, "torch")
    peer.write(variables, tensors(module, variables))


def tensors(module, paths):
    """Returns views of the weights of a module of `torch.nn` or transformers, by path.

    They have the layout of our variables; writing to a view writes to the module. A bias that the
    module lacks is left out.
    """
    by_path = {}
    for path in paths:
        *parents, name, kind = path.split("/")
        attribute = "weight" if kind in ("kernel", "gamma") else "bias"
        parent = module.get_submodule(".".join(parents))
        if name in _INPUTS and not hasattr(parent, name):  # It is a torch.nn.MultiheadAttention.
            tensor = getattr(parent, f"in_proj_{attribute}")
            if tensor is not None:
                tensor = tensor.chunk(3)[_INPUTS.index(name)]
            elif attribute == "weight":  # It has `kdim` or `vdim`.
                tensor = getattr(parent, f"{name}_weight")
        else:
            inner = getattr(parent, name)
            if kind == "kernel":
                _check_linear(inner)
            tensor = getattr(inner, attribute)
        if tensor is not None:
            by_path[path] = tensor.detach().T if kind == "kernel" else tensor.detach()
    return by_path


def _check_linear(module):
    import torch

    # Another module may compute its weight, as with LoRA.
    is_linear = isinstance(module, torch.nn.Linear)
    peer.check_supported(is_linear, "A linear map must be a torch.nn.Linear", repr(module))


def _check_attention(module):
    import torch

    peer.check_type("attention", module, [torch.nn.MultiheadAttention])
    has = {"add_bias_kv": module.bias_k is not None, "add_zero_attn": module.add_zero_attn}
    rule = "A torch.nn.MultiheadAttention must have no keys and values of its own"
    peer.check_supported(not any(has.values()), rule, **has)


def _check_norm(norm):
    import torch

    is_plain = (
        type(norm) is torch.nn.LayerNorm and norm.weight is not None and norm.weight.ndim == 1
    )
    peer.check_supported(is_plain, "A norm must be a torch.nn.LayerNorm with weights", repr(norm))


def _import_activation(activation):
    import torch

    functional = torch.nn.functional
    if activation in (functional.relu, torch.relu) or type(activation) is torch.nn.ReLU:
        return "relu"
    is_exact = type(activation) is torch.nn.GELU and activation.approximate == "none"
    rule = "`activation` must be torch's ReLU or exact GELU"
    peer.check_supported(activation is functional.gelu or is_exact, rule, activation=activation)
    return "gelu"
