"""How far our layers are from other libraries: the largest errors over fixed cases, for a table."""

from functools import partial

from tests.bridges.cases import Case, with_gelu
from tests.bridges.keras_hub_peer import keras_hub_errors
from tests.bridges.marian_peer import marian_errors
from tests.bridges.torch_peer import torch_errors

_CASES = (
    {"batch": 3, "length": 7, "source_length": 5, "num_heads": 4, "key_dim": 8},
    {"batch": 1, "length": 6, "source_length": 9, "num_heads": 1, "key_dim": 6, "num_layers": 3},
    {"batch": 4, "length": 5, "source_length": 5, "num_heads": 2, "key_dim": 16, "seed": 1},
)
_MASKS = ((), ("padding",), ("padding", "causal", "arbitrary"))


def _largest(compare, activations=("relu",), dtype="float32", **settings):
    """The largest errors of `compare` over all cases, these activations and GELU."""
    pairs = [
        compare(
            case=Case(
                **shape, masks=frozenset(masks), activation=activation, dtype=dtype, **settings
            )
        )
        for shape, masks in zip(_CASES, _MASKS, strict=True)
        for activation in with_gelu(dtype, *activations)
    ]
    return tuple(max(column) for column in zip(*pairs, strict=True))


# Name of a comparison -> function of nothing, which returns the largest error of the outputs,
# relative to the largest output, and that of the gradients; see `tests.bridges.comparison.errors`.
BRIDGE_ERRORS = {}
for _dtype in ("float32", "float64"):
    BRIDGE_ERRORS[f"torch.nn.MultiheadAttention, {_dtype}"] = partial(
        _largest, partial(torch_errors, "MultiheadAttention"), dtype=_dtype
    )
    for _kind in ("TransformerEncoder", "TransformerDecoder"):
        for _norm in ("post", "pre"):
            BRIDGE_ERRORS[f"torch.nn.{_kind}, {_norm}-norm, {_dtype}"] = partial(
                _largest, partial(torch_errors, _kind), norm=_norm, dtype=_dtype
            )
    BRIDGE_ERRORS[f"transformers.MarianMTModel, {_dtype}"] = partial(
        _largest, marian_errors, ("relu", "swish"), dtype=_dtype
    )
for _kind in ("TransformerEncoder", "TransformerDecoder"):
    for _norm in ("post", "pre"):
        BRIDGE_ERRORS[f"keras_hub.layers.{_kind}, {_norm}-norm, float32"] = partial(
            _largest, partial(keras_hub_errors, _kind), norm=_norm
        )
