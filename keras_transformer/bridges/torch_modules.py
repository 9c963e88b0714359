"""`torch.nn`'s attention, Transformer layers and stacks, to and from our layers."""

from typing import Any

from keras_transformer.bridges.peer import (
    activation_name,
    check_head_dim,
    check_supported,
    check_type,
    single,
)
from keras_transformer.bridges.torch_tensors import (
    attention_pairs,
    block_pairs,
    norm_pairs,
    read,
    torch_dtype,
    write,
)
from keras_transformer.layers import (
    Decoder,
    DecoderBlock,
    Encoder,
    EncoderBlock,
    MultiHeadAttention,
)

BLOCKS = {EncoderBlock: "TransformerEncoderLayer", DecoderBlock: "TransformerDecoderLayer"}
STACKS = {Encoder: "TransformerEncoder", Decoder: "TransformerDecoder"}
_BLOCK_OF_STACK = {Encoder: EncoderBlock, Decoder: DecoderBlock}
# The names that `block_pairs` takes.
_MAPS = {"inner": "linear1", "outer": "linear2"}
_NAMES = {
    EncoderBlock: {
        "attention": "self_attn",
        "attention_norm": "norm1",
        "feed_forward_norm": "norm2",
        **_MAPS,
    },
    DecoderBlock: {
        "self_attention": "self_attn",
        "cross_attention": "multihead_attn",
        "self_attention_norm": "norm1",
        "cross_attention_norm": "norm2",
        "feed_forward_norm": "norm3",
        **_MAPS,
    },
}


def import_attention(module: Any, dtype: Any) -> MultiHeadAttention:
    """Returns our attention with the weights of a `torch.nn.MultiheadAttention`."""
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
    read(attention_pairs(layer, module))
    return layer


def export_attention(layer: MultiHeadAttention) -> Any:
    """Returns a `torch.nn.MultiheadAttention` with the weights of our attention."""
    import torch

    d_model = layer.query_kernel.shape[0]
    check_head_dim(layer, d_model / layer.num_heads, "torch")
    module = torch.nn.MultiheadAttention(
        d_model,
        layer.num_heads,
        dropout=layer.dropout,
        bias=layer.use_bias,
        kdim=layer.key_kernel.shape[0],
        vdim=layer.value_kernel.shape[0],
        batch_first=True,
        dtype=torch_dtype(layer),
    )
    write(attention_pairs(layer, module))
    return module


def import_block(block_class: type, module: Any, dtype: Any) -> Any:
    """Returns our block with the weights of a torch layer."""
    names = _NAMES[block_class]
    attentions = [getattr(module, names[one]) for one in _attention_names(block_class)]
    norms = [getattr(module, theirs) for ours, theirs in names.items() if ours.endswith("_norm")]
    for attention in attentions:
        _check_attention(attention)
    for norm in norms:
        _check_norm(norm)
    dropouts = [getattr(module, f"dropout{i + 1}") for i in range(len(norms))]
    block = block_class(
        num_heads=single("num_heads", (one.num_heads for one in attentions)),
        intermediate_dim=module.linear1.out_features,
        dropout=single("dropout", (one.p for one in dropouts)),
        attention_dropout=single("dropout", (one.dropout for one in attentions)),
        activation_dropout=module.dropout.p,
        activation=_import_activation(module.activation),
        norm="pre" if module.norm_first else "post",
        use_bias=module.self_attn.in_proj_bias is not None,
        epsilon=single("layer_norm_eps", (norm.eps for norm in norms)),
        dtype=dtype,
    )
    block.build(*[(None, None, module.linear1.in_features)] * len(attentions))
    read(block_pairs(block, module, names))
    return block


def export_block(block: EncoderBlock | DecoderBlock) -> Any:
    """Returns a torch layer with the weights of our block."""
    import torch

    names = _NAMES[type(block)]
    attentions = {name: getattr(block, name) for name in _attention_names(type(block))}
    check_supported(
        None not in attentions.values(),
        "A DecoderBlock must have cross-attention, as torch's has",
        "a block that was built without the encoder's shape",
    )
    d_model, *encoder_widths = [one.key_kernel.shape[0] for one in attentions.values()]
    for attention in attentions.values():
        check_head_dim(attention, d_model / block.num_heads, "torch")
    check_supported(
        all(width == d_model for width in encoder_widths),
        "A decoder block must be as wide as the encoder, as torch's is",
        f"width {d_model}, encoder_outputs of width {encoder_widths}",
    )
    module = getattr(torch.nn, BLOCKS[type(block)])(
        d_model,
        block.num_heads,
        block.intermediate_dim,
        dropout=block.dropout,
        activation=activation_name(block.activation, ("relu", "gelu")),
        layer_norm_eps=block.epsilon,
        batch_first=True,
        norm_first=block.norm == "pre",
        dtype=torch_dtype(block),
    )
    module.dropout.p = block.activation_dropout
    for name in attentions:
        getattr(module, names[name]).dropout = block.attention_dropout
    write(block_pairs(block, module, names))
    return module


def import_stack(stack_class: type, module: Any, dtype: Any) -> Any:
    """Returns our stack, without positions, with the weights of a torch stack."""
    import torch

    block_class = _BLOCK_OF_STACK[stack_class]
    for layer in module.layers:
        check_type("layers", layer, [getattr(torch.nn, BLOCKS[block_class])])
    has_norm = module.norm is not None
    if has_norm:
        _check_norm(module.norm)
    stack = stack_class(
        [import_block(block_class, layer, dtype) for layer in module.layers],
        position=None,
        dropout=0.0,
        final_norm=has_norm,
        epsilon=module.norm.eps if has_norm else 1e-6,
        dtype=dtype,
    )
    shape = (None, None, module.layers[0].linear1.in_features)
    stack.build(*[shape] * len(_attention_names(block_class)))
    if has_norm:
        read(norm_pairs(stack.norm_layer, module.norm))
    return stack


def export_stack(stack: Encoder | Decoder) -> Any:
    """Returns a torch stack with the weights of our stack, which must have no positions."""
    import torch

    for block in stack.blocks:
        check_type("blocks", block, [_BLOCK_OF_STACK[type(stack)]])
    check_supported(
        stack.position is None,
        "`position` must be None: torch's stacks add no positions",
        position=stack.position,
    )
    layers = [export_block(block) for block in stack.blocks]
    norm = None
    if stack.norm_layer is not None:
        d_model = layers[0].linear1.in_features
        norm = torch.nn.LayerNorm(d_model, eps=stack.epsilon, dtype=torch_dtype(stack))
        write(norm_pairs(stack.norm_layer, norm))
    # A nested tensor would cut the padding off the outputs.
    options = {"enable_nested_tensor": False} if type(stack) is Encoder else {}
    module = getattr(torch.nn, STACKS[type(stack)])(layers[0], 1, norm, **options)
    module.layers = torch.nn.ModuleList(layers)
    module.num_layers = len(layers)
    return module


def _attention_names(block_class):
    return [name for name in _NAMES[block_class] if name.endswith("attention")]


def _check_attention(module):
    check_supported(
        module.bias_k is None and not module.add_zero_attn,
        "A torch.nn.MultiheadAttention must have no keys and values of its own",
        add_bias_kv=module.bias_k is not None,
        add_zero_attn=module.add_zero_attn,
    )


def _check_norm(norm):
    import torch

    check_supported(
        type(norm) is torch.nn.LayerNorm and norm.weight is not None,
        "A norm must be a torch.nn.LayerNorm with weights",
        repr(norm),
    )


def _import_activation(activation):
    import torch

    functional = torch.nn.functional
    if activation in (functional.relu, torch.relu) or type(activation) is torch.nn.ReLU:
        return "relu"
    is_exact = type(activation) is torch.nn.GELU and activation.approximate == "none"
    check_supported(
        activation is functional.gelu or is_exact,
        "`activation` must be torch's ReLU or exact GELU",
        activation=activation,
    )
    return "gelu"
