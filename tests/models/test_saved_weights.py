"""Which kernels a SavedModel stores in one matrix."""

from keras_transformer.models.ensemble import copy_of
from keras_transformer.models.saved_weights import stored_weights
from tests.tiny_translator import tiny_model


def test_maps_of_one_width_share_a_matrix():
    model = copy_of(tiny_model(), "bfloat16")
    attention, feed_forward = [["query", "key", "value"], ["output"]], [["inner"], ["outer"]]
    expected = attention + feed_forward + attention + attention + feed_forward
    assert names(model) == expected
    # A quantized map, also one with a kernel of floats, is stored as it is.
    model.encoder.blocks[0].attention.key_dense.quantize("float8")
    model.decoder.blocks[0].cross_attention.query_dense.quantize("int8")
    assert names(model)[:2] == [["query", "value"], ["output"]]
    assert "query" not in sum(names(model)[6:], [])


def names(model):
    _, groups = stored_weights(model, for_amx=True)
    return [[kernel.path.split("/")[-2] for kernel in group] for group in groups]
