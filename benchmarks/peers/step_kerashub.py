"""Measures a training step of KerasHub's encoder and decoder blocks, composed as in its guides.

Usage: step_kerashub.py POLICY [xla]
"""

import sys

import keras
import keras_hub
import numpy as np
from keras import layers
from setting import (
    BATCH,
    D_MODEL,
    DROPOUT,
    HEADS,
    INTERMEDIATE,
    LAYERS,
    SOURCE,
    TARGET,
    VOCAB,
    report,
    time_steps,
)


def build():
    source = keras.Input((None,), dtype="int32")
    target = keras.Input((None,), dtype="int32")
    embedding = keras_hub.layers.ReversibleEmbedding(
        VOCAB, D_MODEL, tie_weights=True, mask_zero=True
    )
    positions = keras_hub.layers.SinePositionEncoding()

    def embed(ids):
        states = embedding(ids) * D_MODEL**0.5
        return layers.Dropout(DROPOUT)(states + positions(states))

    encoded = embed(source)
    for _ in range(LAYERS):
        block = keras_hub.layers.TransformerEncoder(INTERMEDIATE, HEADS, dropout=DROPOUT)
        encoded = block(encoded)
    decoded = embed(target)
    for _ in range(LAYERS):
        block = keras_hub.layers.TransformerDecoder(INTERMEDIATE, HEADS, dropout=DROPOUT)
        decoded = block(decoded, encoded)
    return keras.Model([source, target], embedding(decoded, reverse=True))


keras.mixed_precision.set_global_policy(sys.argv[1])
model = build()
model.compile(
    optimizer=keras.optimizers.Adam(1e-4, beta_2=0.98, epsilon=1e-9),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    jit_compile="xla" in sys.argv[2:],
)
generator = np.random.default_rng(0)
source, target, labels = (
    generator.integers(1, VOCAB, (BATCH, length)).astype("int32")
    for length in (SOURCE, TARGET, TARGET)
)
report(time_steps(lambda: model.train_on_batch([source, target], labels)))
