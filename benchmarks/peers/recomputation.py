"""Measures a training step of 12 + 12 blocks: seconds, and increase of peak memory.

Usage: recomputation.py kept|recomputed
"""

import json
import resource
import statistics
import sys
import time

import keras
import numpy as np

from keras_transformer.models import Transformer

layers = {"num_encoder_layers": 12, "num_decoder_layers": 12}
model = Transformer.from_preset("base", 8000, **layers, remat=sys.argv[1] == "recomputed")
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile("sgd", loss, jit_compile=False)
ids = np.random.default_rng(0).integers(1, 8000, (3, 32, 64)).astype("int32")
batch = {"source": ids[0], "target": ids[1]}, ids[2]


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


before = peak()
model.train_on_batch(*batch)
seconds = []
for _ in range(3):
    start = time.perf_counter()
    model.train_on_batch(*batch)
    seconds.append(time.perf_counter() - start)
print(json.dumps({"seconds": statistics.median(seconds), "megabytes": peak() - before}))
