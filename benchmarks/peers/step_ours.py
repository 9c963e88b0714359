"""Measures a training step of our base or big preset with `fit`.

Usage: step_ours.py POLICY [xla] [limit] [loss_model]

With "loss_model", `LossModel` computes projection and loss together. With "limit", the program also
measures the time of the matrix products alone.
"""

import sys
import time

import keras
import numpy as np
from keras import ops
from setting import (
    BATCH,
    D_MODEL,
    DROPOUT,
    INTERMEDIATE,
    LAYERS,
    MODEL,
    SOURCE,
    STEPS,
    TARGET,
    VOCAB,
    WARM_UP,
    report,
)

from keras_transformer import Transformer, get_preset
from keras_transformer.training import LossModel, compile_model


class Clock(keras.callbacks.Callback):
    """Measures the seconds of each step; reading the loss waits for the step."""

    def __init__(self):
        super().__init__()
        self.seconds = []

    def on_train_batch_begin(self, batch, logs=None):
        self.start = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        float(logs["loss"])
        self.seconds.append(time.perf_counter() - self.start)


def product_seconds(dtype):
    """Returns the seconds of all matrix products of a step, forward and backward, timed alone."""
    tokens = BATCH * TARGET
    products = {
        (D_MODEL, D_MODEL): LAYERS * (4 + 8),
        (D_MODEL, INTERMEDIATE): LAYERS * 2,
        (INTERMEDIATE, D_MODEL): LAYERS * 2,
        (D_MODEL, VOCAB): 1,
    }

    def backward_too(inputs, kernel, upstream):
        return (
            ops.matmul(inputs, kernel),
            ops.matmul(upstream, ops.transpose(kernel)),
            ops.matmul(ops.transpose(inputs), upstream),
        )

    if keras.backend.backend() == "jax":
        import jax

        backward_too = jax.jit(backward_too)
    else:
        import tensorflow as tf

        backward_too = tf.function(backward_too)
    total = 0.0
    for (rows, columns), count in products.items():
        arrays = [
            ops.cast(keras.random.normal(shape), dtype)
            for shape in ((tokens, rows), (rows, columns), (tokens, columns))
        ]
        seconds = []
        for _ in range(8):
            start = time.perf_counter()
            for array in backward_too(*arrays):
                float(array[0, 0])
            seconds.append(time.perf_counter() - start)
        total += count * sorted(seconds)[len(seconds) // 2]
    return total


def device_memory_mb():
    """Returns the peak memory of the accelerator, or None without one."""
    if keras.backend.backend() != "jax":
        return None
    import jax

    statistics = jax.devices()[0].memory_stats() or {}
    peak = statistics.get("peak_bytes_in_use")
    return peak and peak / 2**20


policy = sys.argv[1]
keras.utils.set_random_seed(0)
model = Transformer.from_preset(MODEL, dropout=DROPOUT, vocab_size=VOCAB, dtype=policy)
arrange = LossModel.arrange if "loss_model" in sys.argv[2:] else lambda *batch: batch
if "loss_model" in sys.argv[2:]:
    model = LossModel(model)
compile_model(model, get_preset(MODEL).recipe, jit_compile="xla" in sys.argv[2:])
generator = np.random.default_rng(0)
source, target, labels = (
    generator.integers(1, VOCAB, (BATCH, length)).astype("int32")
    for length in (SOURCE, TARGET, TARGET)
)
weights = np.full((BATCH, TARGET), 1 / (BATCH * TARGET), "float32")


def batches():
    while True:
        yield arrange({"source": source, "target": target}, labels, weights)


clock = Clock()
model.fit(batches(), steps_per_epoch=WARM_UP + STEPS, callbacks=[clock], verbose=0)
more = {}
if device_memory_mb():
    more["peak_memory_mb"] = device_memory_mb()
if "limit" in sys.argv[2:]:
    more["product_seconds"] = product_seconds(keras.DTypePolicy(policy).compute_dtype)
report(clock.seconds, **more)
