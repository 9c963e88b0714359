"""`torch.nn`'s attention and Transformer modules, to and from our layers."""

from keras_transformer.bridges.peer import check_built, check_type, import_peer
from keras_transformer.bridges.torch_attention import export_attention, import_attention
from keras_transformer.bridges.torch_blocks import (
    BLOCKS,
    STACKS,
    export_block,
    export_stack,
    import_block,
    import_stack,
)
from keras_transformer.layers import MultiHeadAttention

_MODULES = {MultiHeadAttention: "MultiheadAttention", **BLOCKS, **STACKS}


def from_torch(module, dtype=None):
    """Return our layer with the weights of a torch module: the two compute the same.

    | torch.nn | here |
    |---|---|
    | `MultiheadAttention`, also with `kdim` and `vdim` | `MultiHeadAttention` |
    | `TransformerEncoderLayer`, `TransformerDecoderLayer` | `EncoderBlock`, `DecoderBlock` |
    | `TransformerEncoder`, `TransformerDecoder` | `Encoder`, `Decoder`, without positions |

    Differs from torch: boolean masks are inverse, `True` hides in torch and shows here. Our decoder
    is causal by itself, torch's needs `tgt_mask`. Our layers are batch-first, whatever
    `batch_first` is. A query that may attend to nothing gets zeros here and NaN there.

    Args:
        module: One of these modules, of exactly this class.
        dtype: Dtype policy of the layer; None for the dtype of the module's weights.

    Returns:
        A built layer, with the module's rates of dropout.

    Raises:
        ValueError: If the module has what our layers have not: another activation than ReLU and
            exact GELU, `add_bias_kv`, `add_zero_attn`, norms of several epsilons.
        ImportError: If torch is not installed.

    Example:

    >>> import torch
    >>> module = torch.nn.TransformerEncoderLayer(d_model=512, nhead=8, batch_first=True)
    >>> block = keras_transformer.bridges.from_torch(module)
    >>> ops.shape(block(keras.random.normal((2, 5, 512))))
    (2, 5, 512)
    """
    torch = import_peer("torch", "torch")
    classes = {getattr(torch.nn, name): ours for ours, name in _MODULES.items()}
    check_type("module", module, classes)
    layer_class = classes[type(module)]
    dtype = dtype or str(next(module.parameters()).dtype).removeprefix("torch.")
    if layer_class in BLOCKS:
        return import_block(layer_class, module, dtype)
    if layer_class in STACKS:
        return import_stack(layer_class, module, dtype)
    return import_attention(module, dtype)


def to_torch(layer):
    """Return a torch module with the weights of our layer: the two compute the same.

    See `from_torch` for the classes and the masks, which are inverse.

    Args:
        layer: A built layer, of exactly one of these classes.

    Returns:
        A new module on the CPU, batch-first and in evaluation mode. The attentions of a block
        without biases come with biases of zero. Rates of dropout are kept, except that of the
        inputs of a stack, which torch's stacks do not drop.

    Raises:
        ValueError: If the layer is not built, or torch has no such module: keys or values of
            another size than width / heads, another activation than ReLU and GELU, positions in a
            stack, a decoder without cross-attention.
        ImportError: If torch is not installed.

    Example:

    >>> block = keras_transformer.layers.EncoderBlock(num_heads=8, intermediate_dim=2048)
    >>> block.build((None, None, 512))
    >>> keras_transformer.bridges.to_torch(block).linear1.out_features
    2048
    """
    import_peer("torch", "torch")
    check_type("layer", layer, _MODULES)
    check_built(layer)
    if type(layer) in BLOCKS:
        return export_block(layer).eval()
    if type(layer) in STACKS:
        return export_stack(layer).eval()
    return export_attention(layer).eval()
