"""Which kernels a SavedModel stores in one matrix."""

import types

from keras_transformer.layers import MultiHeadAttention
from keras_transformer.models.saved_weights import stored_weights


def test_maps_of_one_width_share_a_matrix():
    layers = [MultiHeadAttention(2, 4, dtype="bfloat16") for _ in range(2)]
    for layer in layers:
        layer.build((None, None, 8), (None, None, 8))
    model = types.SimpleNamespace(weights=[weight for layer in layers for weight in layer.weights])
    _, groups = stored_weights(model, for_amx=True)
    names = [[kernel.path.split("/")[-2] for kernel in group] for group in groups]
    assert names == [["query", "key", "value"], ["output"]] * 2
