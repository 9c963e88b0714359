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
    REPEAT,
    SOURCE,
    STEPS,
    TARGET,
    VOCAB,
    WARM_UP,
    rate_of,
    report,
)

from keras_transformer import Transformer, get_preset
from keras_transformer.training import LossModel, compile_model


class Clock(keras.callbacks.Callback):
    """Measures the seconds of a step, a mean over an epoch; the loss at its end is waited for.

    A callback after each batch would let Keras wait for every step.
    """

    def __init__(self):
        super().__init__()
        self.seconds = []

    def on_epoch_begin(self, epoch, logs=None):
        self.start = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        float(logs["loss"])
        self.seconds.append((time.perf_counter() - self.start) / REPEAT)


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


def of_accelerator():
    """Returns the peak memory and the matrix rate of the accelerator; nothing without one."""
    if keras.backend.backend() != "jax":
        return {}
    import jax

    peak = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    if not peak:
        return {}
    first, second = (keras.random.normal((8192, 8192), dtype="bfloat16") for _ in range(2))
    rate = rate_of(lambda: ops.matmul(first, second), jax.block_until_ready)
    return {"peak_memory_mb": peak / 2**20, "matrix_rate": rate}


policy = sys.argv[1]
keras.utils.set_random_seed(0)
model = Transformer.from_preset(MODEL, dropout=DROPOUT, vocab_size=VOCAB, dtype=policy)
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
        yield {"source": source, "target": target}, labels, weights


clock = Clock()
epochs = WARM_UP + STEPS
model.fit(batches(), steps_per_epoch=REPEAT, epochs=epochs, callbacks=[clock], verbose=0)
more = of_accelerator()
if "limit" in sys.argv[2:]:
    more["product_seconds"] = product_seconds(keras.DTypePolicy(policy).compute_dtype)
report(clock.seconds, **more)
