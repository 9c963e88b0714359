"""Which weights a SavedModel stores transposed, and how they are read again."""

import types

import pytest

from keras_transformer.layers import FeedForward, MultiHeadAttention
from keras_transformer.models import weight_files
from keras_transformer.models.weight_files import stored_weights


def model_of(*layers):
    """Returns an object with the weights of built layers."""
    for layer in layers:
        shapes = ((None, None, 8),) * (2 if isinstance(layer, MultiHeadAttention) else 1)
        layer.build(*shapes)
    return types.SimpleNamespace(weights=[weight for layer in layers for weight in layer.weights])


@pytest.mark.parametrize("for_amx, widths", [(True, [5, 10]), (False, [10])])
def test_small_kernels_are_transposed_only_with_amx(for_amx, widths, monkeypatch):
    monkeypatch.setattr(weight_files, "_LARGE", 80)
    model = model_of(*(FeedForward(width, dtype="bfloat16") for width in (5, 10)))
    plain, groups = stored_weights(model, for_amx)
    assert [kernel.shape for [kernel] in groups] == [
        shape for width in widths for shape in ((8, width), (width, 8))
    ]
    stored = {id(kernel) for group in groups for kernel in group}
    assert [id(w) for w in plain] == [id(w) for w in model.weights if id(w) not in stored]


def test_maps_of_one_width_share_a_matrix():
    layers = [
        MultiHeadAttention(2, 4, dtype="bfloat16"),
        MultiHeadAttention(2, 4, dtype="bfloat16"),
    ]
    model = model_of(*layers)
    names = [
        [kernel.path.split("/")[-2] for kernel in group] for group in stored_weights(model, True)[1]
    ]
    assert names == [["query", "key", "value"], ["output"]] * 2
