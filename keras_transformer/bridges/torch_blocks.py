"""`torch.nn`'s Transformer layers and stacks of them, to and from our blocks and stacks."""

from keras_transformer.bridges.peer import (
    activation_name,
    check_supported,
    check_type,
    single,
)
from keras_transformer.bridges.torch_attention import (
    attention_pairs,
    check_attention,
    check_head_dim,
)
from keras_transformer.bridges.torch_tensors import (
    linear_pairs,
    norm_pairs,
    read,
    torch_dtype,
    write,
)
from keras_transformer.layers import Decoder, DecoderBlock, Encoder, EncoderBlock

BLOCKS = {EncoderBlock: "TransformerEncoderLayer", DecoderBlock: "TransformerDecoderLayer"}
STACKS = {Encoder: "TransformerEncoder", Decoder: "TransformerDecoder"}
_BLOCK_OF_STACK = {Encoder: EncoderBlock, Decoder: DecoderBlock}
# Attentions of our blocks -> torch's attributes of the attention and of its norm.
_ATTENTIONS = {
    EncoderBlock: {"attention": ("self_attn", "norm1")},
    DecoderBlock: {
        "self_attention": ("self_attn", "norm1"),
        "cross_attention": ("multihead_attn", "norm2"),
    },
}
_FEED_FORWARD_NORM = {EncoderBlock: "norm2", DecoderBlock: "norm3"}
_ACTIVATIONS = ("relu", "gelu")


def import_block(block_class, module, dtype):
    """Return our built block with the weights of a torch layer."""
    names = _ATTENTIONS[block_class].values()
    attentions = [getattr(module, name) for name, _ in names]
    norms = [getattr(module, name) for _, name in names]
    norms.append(getattr(module, _FEED_FORWARD_NORM[block_class]))
    for attention in attentions:
        check_attention(attention)
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
    shape = (None, None, module.linear1.in_features)
    block.build(*(shape for _ in attentions))
    read(_block_pairs(block, module))
    return block


def export_block(block):
    """Return a torch layer with the weights of our block."""
    import torch

    names = _ATTENTIONS[type(block)]
    attentions = [getattr(block, name) for name in names]
    check_supported(
        None not in attentions,
        "A DecoderBlock must have cross-attention, as torch's has",
        "a block that was built without the encoder's shape",
    )
    for attention in attentions:
        check_head_dim(attention)
    d_model, *encoder_widths = [one.key_kernel.shape[0] for one in attentions]
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
        activation=activation_name(block.activation, _ACTIVATIONS),
        layer_norm_eps=block.epsilon,
        batch_first=True,
        norm_first=block.norm == "pre",
        dtype=torch_dtype(block),
    )
    module.dropout.p = block.activation_dropout
    for name, _ in names.values():
        getattr(module, name).dropout = block.attention_dropout
    write(_block_pairs(block, module))
    return module


def _block_pairs(block, module):
    pairs = []
    for name, (attention, norm) in _ATTENTIONS[type(block)].items():
        pairs += attention_pairs(getattr(block, name), getattr(module, attention))
        pairs += norm_pairs(getattr(block, f"{name}_norm"), getattr(module, norm))
    maps = block.feed_forward
    pairs += linear_pairs(maps.inner_kernel, maps.inner_bias, module.linear1)
    pairs += linear_pairs(maps.outer_kernel, maps.outer_bias, module.linear2)
    norm = getattr(module, _FEED_FORWARD_NORM[type(block)])
    return pairs + norm_pairs(block.feed_forward_norm, norm)


def import_stack(stack_class, module, dtype):
    """Return our built stack, without positions, with the weights of a torch stack."""
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
    stack.build(*(shape for _ in _ATTENTIONS[block_class]))
    if has_norm:
        read(norm_pairs(stack.norm_layer, module.norm))
    return stack


def export_stack(stack):
    """Return a torch stack with the weights of our stack, which must have no positions."""
    import torch

    for block in stack.blocks:
        check_type("blocks", block, [_BLOCK_OF_STACK[type(stack)]])
    check_supported(
        stack.position is None,
        "`position` must be None: torch's stacks add no positions",
        f"position={stack.position!r}",
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


def _check_norm(norm):
    import torch

    check_supported(
        type(norm) is torch.nn.LayerNorm and norm.weight is not None,
        "A norm must be a torch.nn.LayerNorm with weights",
        repr(norm),
    )


def _import_activation(activation):
    """Return the name of what a torch layer calls between its linear maps."""
    import torch

    functional = torch.nn.functional
    if activation in (functional.relu, torch.relu) or type(activation) is torch.nn.ReLU:
        return "relu"
    is_exact = type(activation) is torch.nn.GELU and activation.approximate == "none"
    if activation is functional.gelu or is_exact:
        return "gelu"
    raise ValueError(
        f"`activation` must be torch's ReLU or exact GELU. Received: activation={activation!r}"
    )
