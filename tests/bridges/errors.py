"""How far our layers are from other libraries: the largest errors over fixed cases, for a table."""

from functools import partial
from itertools import product

from tests.bridges.cases import Case, with_gelu
from tests.bridges.keras_hub_peer import KINDS, keras_hub_errors
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
    pairs = []
    for shape, masks in zip(_CASES, _MASKS, strict=True):
        for activation in with_gelu(dtype, *activations):
            options = {**shape, **settings, "activation": activation, "dtype": dtype}
            pairs.append(compare(case=Case(masks=frozenset(masks), **options)))
    return tuple(max(column) for column in zip(*pairs, strict=True))


def _comparisons():
    for dtype in ("float32", "float64"):
        compare = partial(torch_errors, "MultiheadAttention")
        yield f"torch.nn.MultiheadAttention, {dtype}", compare, {"dtype": dtype}
        for kind, norm in product(KINDS, ("post", "pre")):
            settings = {"norm": norm, "dtype": dtype}
            yield f"torch.nn.{kind}, {norm}-norm, {dtype}", partial(torch_errors, kind), settings
        settings = {"activations": ("relu", "swish"), "dtype": dtype}
        yield f"transformers.MarianMTModel, {dtype}", marian_errors, settings
    for kind, norm in product(KINDS, ("post", "pre")):
        name = f"keras_hub.layers.{kind}, {norm}-norm, float32"
        yield name, partial(keras_hub_errors, kind), {"norm": norm}


# Name of a comparison -> function of nothing, which returns the largest error of the outputs,
# relative to the largest output, and that of the gradients; see `tests.bridges.comparison.errors`.
BRIDGE_ERRORS = {
    name: partial(_largest, compare, **settings) for name, compare, settings in _comparisons()
}
