"""`from_torch` and `to_torch`: `torch.nn`'s attention and Transformer modules."""

from typing import Any

import keras

from keras_transformer.bridges import torch_modules
from keras_transformer.bridges.peer import check_built, check_type, import_peer
from keras_transformer.bridges.torch_modules import BLOCKS, STACKS
from keras_transformer.bridges.torch_tensors import keras_dtype
from keras_transformer.layers import MultiHeadAttention

_MODULES = {MultiHeadAttention: "MultiheadAttention", **BLOCKS, **STACKS}


def from_torch(module: Any, dtype: Any = None) -> keras.layers.Layer:
    """Returns our layer with the weights of a torch module: the two compute the same.

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
        ValueError: If our layers do not have a part of the module: another activation than ReLU and
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
    dtype = dtype or keras_dtype(next(module.parameters()))
    if layer_class in BLOCKS:
        return torch_modules.import_block(layer_class, module, dtype)
    if layer_class in STACKS:
        return torch_modules.import_stack(layer_class, module, dtype)
    return torch_modules.import_attention(module, dtype)


def to_torch(layer: keras.layers.Layer) -> Any:
    """Returns a torch module with the weights of our layer: the two compute the same.

    See `from_torch` for the classes and the masks, which are inverse.

    Args:
        layer: A built layer, of exactly one of these classes.

    Returns:
        A new module on the CPU, batch-first and in evaluation mode. The attentions of a block
        without biases have biases of zero. Rates of dropout are kept, except for the inputs of a
        stack, which torch's stacks do not drop.

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
        return torch_modules.export_block(layer).eval()
    if type(layer) in STACKS:
        return torch_modules.export_stack(layer).eval()
    return torch_modules.export_attention(layer).eval()
