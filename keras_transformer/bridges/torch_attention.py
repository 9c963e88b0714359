"""`torch.nn.MultiheadAttention` to and from our `MultiHeadAttention`."""

from keras_transformer.bridges.peer import check_supported
from keras_transformer.bridges.torch_tensors import (
    detached,
    linear_pairs,
    read,
    torch_dtype,
    write,
)
from keras_transformer.layers import MultiHeadAttention


def import_attention(module, dtype):
    """Return a built `MultiHeadAttention` with the weights of a `torch.nn.MultiheadAttention`."""
    check_attention(module)
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


def export_attention(layer):
    """Return a `torch.nn.MultiheadAttention` with the weights of a `MultiHeadAttention`."""
    import torch

    check_head_dim(layer)
    module = torch.nn.MultiheadAttention(
        layer.query_kernel.shape[0],
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


def attention_pairs(layer, module):
    """Return the pairs of our variables and torch's tensors; see `torch_tensors`."""
    if module.in_proj_weight is None:  # With kdim or vdim.
        weights = [getattr(module, f"{letter}_proj_weight").detach() for letter in "qkv"]
    else:
        weights = module.in_proj_weight.detach().chunk(3)
    bias = detached(module.in_proj_bias)
    biases = (None, None, None) if bias is None else bias.chunk(3)
    pairs = linear_pairs(layer.output_kernel, layer.output_bias, module.out_proj)
    for name, weight, bias in zip(("query", "key", "value"), weights, biases, strict=True):
        pairs.append((getattr(layer, f"{name}_kernel"), weight.T))
        pairs.append((getattr(layer, f"{name}_bias"), bias))
    return pairs


def check_attention(module):
    """Raise `ValueError` if a torch attention has what ours has not."""
    check_supported(
        module.bias_k is None and not module.add_zero_attn,
        "A torch.nn.MultiheadAttention must have no keys and values of its own",
        f"add_bias_kv={module.bias_k is not None}, add_zero_attn={module.add_zero_attn}",
    )


def check_head_dim(layer):
    """Raise `ValueError` unless our attention has heads of the size that torch's have."""
    d_model = layer.query_kernel.shape[0]
    check_supported(
        layer.key_dim == layer.value_dim == d_model / layer.num_heads,
        "Keys and values must have the size width / num_heads, as torch's have",
        f"key_dim={layer.key_dim}, value_dim={layer.value_dim}, num_heads={layer.num_heads}, "
        f"width {d_model}",
    )
