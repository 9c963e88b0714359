"""One of several processes that train: the seconds of a step, and of an exchange of its gradients.

Usage: steps_of_processes.py COORDINATOR PROCESSES PROCESS TOKENS

Prints, in process 0, the medians of steps of TOKENS target tokens in rows of 64, with `fit`, and of
sums over all processes of arrays like the gradients.
"""

import contextlib
import json
import statistics
import sys
import time

import jax
import keras
import numpy as np

from keras_transformer import Transformer, get_preset
from keras_transformer.training import (
    LossModel,
    compile_model,
    joined_processes,
    make_distribution,
    strategy_scope,
)

coordinator, number, process, tokens = sys.argv[1], *map(int, sys.argv[2:])
STEPS, WIDTH, VOCABULARY = 12, 64, 8_000


class Clock(keras.callbacks.Callback):
    """Notes the seconds of each step."""

    def on_train_begin(self, logs=None):
        self.seconds, self.last = [], time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        float(logs["loss"])  # JAX computes in the background.
        now = time.perf_counter()
        self.seconds.append(now - self.last)
        self.last = now


def batches(rows):
    ids = np.random.default_rng(process).integers(4, VOCABULARY, (rows, WIDTH)).astype("int32")
    weights = np.full(ids.shape, 1 / tokens, "float32")
    while True:
        yield {"source": ids, "target": ids}, ids, weights


def exchange(model):
    """Returns the median seconds of a sum of arrays like the gradients over all processes."""
    shapes = [weight.shape for weight in model.trainable_weights]
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ["process"])
    cut = jax.NamedSharding(mesh, jax.sharding.PartitionSpec("process"))
    whole = jax.NamedSharding(mesh, jax.sharding.PartitionSpec())
    arrays = [
        jax.make_array_from_process_local_data(cut, np.ones((1, *shape), "float32"))
        for shape in shapes
    ]
    add = jax.jit(lambda arrays: [array.sum(0) for array in arrays], out_shardings=whole)
    seconds = []
    for _ in range(STEPS):
        start = time.perf_counter()
        jax.block_until_ready(add(arrays))
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[2:])


several = joined_processes(coordinator, number, process)
with several if number > 1 else contextlib.nullcontext(), strategy_scope(make_distribution()):
    keras.utils.set_random_seed(1)
    model = LossModel(Transformer.from_preset("tiny", vocab_size=VOCABULARY))
    compile_model(model, get_preset("tiny").recipe)
    clock = Clock()
    rows = tokens // WIDTH // number
    options = {"steps_per_epoch": STEPS, "shuffle": False, "verbose": 0, "callbacks": [clock]}
    model.fit(batches(rows), **options)
    found = {"step": statistics.median(clock.seconds[2:])}
    found["bytes"] = 4 * sum(int(np.prod(w.shape)) for w in model.trainable_weights)
    if number > 1:
        found["exchange"] = exchange(model)
if process == 0:
    print(json.dumps(found))
