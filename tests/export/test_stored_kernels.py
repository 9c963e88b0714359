"""A copy for a SavedModel computes what the model does, with kernels that are stored otherwise."""

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.inference import stored_kernels
from keras_transformer.inference.stored_kernels import (
    StoredKernels,
    StoredTransformer,
    multiply_few_rows,
)
from keras_transformer.models import weight_files
from keras_transformer.models.ensemble import copy_of
from tests.closeness import assert_close
from tests.layers.oracle_parameters import array, randomize
from tests.tiny_translator import tiny_model

GENERATOR = np.random.default_rng(0)
SOURCE, TARGET = GENERATOR.integers(4, 12, (2, 3, 5)).astype("int32")
UNEQUAL = {"use_bias": True, "key_dim": 4, "value_dim": 3, "norm": "pre"}
RELATIVE = {"target_vocab_size": 15, "position": "relative"}


def set_amx(monkeypatch, has_amx):
    for module in (stored_kernels, weight_files):
        monkeypatch.setattr(module, "has_amx", lambda: has_amx)


def slow(*cases):
    return [pytest.param(*case, marks=pytest.mark.slow) for case in cases]


@pytest.mark.parametrize(
    "amx, num_parts, dtype, settings",
    [
        (True, 3, "bfloat16", UNEQUAL),
        *slow((False, 1, "bfloat16", {}), (False, 3, "bfloat16", RELATIVE)),
        *slow((True, 1, "float32", {}), (False, 3, "float32", UNEQUAL)),
    ],
)
def test_logits_are_those_of_the_model(amx, num_parts, dtype, settings, monkeypatch):
    set_amx(monkeypatch, amx)
    monkeypatch.setattr(stored_kernels, "_MIN_PART_SIZE", 10)
    monkeypatch.setattr(weight_files, "_LARGE", 100)
    model = copy_of(tiny_model(1, **settings), dtype)
    randomize(model)
    stored = copy_of(model, model_class=StoredTransformer)
    kernels = StoredKernels(stored, num_parts)
    _, groups = weight_files.stored_weights(stored)
    assert bool(groups) == (dtype == "bfloat16")
    for kernel in (kernel for group in groups for kernel in group):  # Only transposes are read.
        kernel.assign(np.zeros(kernel.shape))

    def logits(transformer):
        inputs = {"source": tf.constant(SOURCE), "target": tf.constant(TARGET)}
        state, found = transformer.start_decoding(inputs["source"], width=1), []
        for position in range(TARGET.shape[1]):
            step, state = transformer.decode_step(inputs["target"][:, position], None, state)
            found.append(step)
        return transformer(inputs, training=False), tf.stack(found, axis=1)

    @tf.function
    def stored_logits():
        with kernels.read_once():
            return logits(stored)

    expected, _ = logits(model)
    assert np.std(array(expected)) > 0.3
    for found in stored_logits():
        assert_close(array(found), array(expected), dtype)


def test_inputs_of_several_maps_are_multiplied_once(monkeypatch):
    set_amx(monkeypatch, True)
    model = copy_of(tiny_model(1), "bfloat16", StoredTransformer)
    kernels, attention = StoredKernels(model), model.encoder.blocks[0].attention

    def project():
        with kernels.read_once():
            rows = tf.ones([3, model.config.d_model], tf.bfloat16)
            return [attention.query_dense(rows), attention.value_dense(rows)]

    graph = tf.function(project).get_concrete_function().graph
    assert sum("MatMul" in operation.type for operation in graph.get_operations()) == 1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("amx", [True, False])
@pytest.mark.parametrize("num_rows, num_parts", [(1, 1), (4, 2), (4, 100), (9, 3)])
def test_parts_of_a_product(num_rows, num_parts, amx, dtype, monkeypatch):
    set_amx(monkeypatch, amx)
    monkeypatch.setattr(stored_kernels, "_MIN_PART_SIZE", 6)
    # Small integers, whose products and sums are exact in bfloat16.
    rows = GENERATOR.integers(-3, 4, (num_rows, 6)).astype("float32")
    transpose = GENERATOR.integers(-3, 4, (7, 6)).astype("float32")
    found = multiply_few_rows(tf.cast(rows, dtype), tf.cast(transpose, dtype), num_parts)
    np.testing.assert_array_equal(tf.cast(found, "float32"), rows @ transpose.T)
