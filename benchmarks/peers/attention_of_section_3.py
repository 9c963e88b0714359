"""Measures a forward and a backward pass of attention: seconds, and increase of peak memory.

Usage: attention_of_section_3.py KIND BATCH LENGTH HEADS KEY_DIM

KIND is `dot-product` or `additive`, our attention functions; `Keras, additive`, Keras' attention
function, which has no heads; or `multi-head`, self-attention with its projections.
"""

import json
import resource
import statistics
import sys
import time

import keras
import tensorflow as tf

from keras_transformer.layers import (
    AdditiveAttention,
    MultiHeadAttention,
    ScaledDotProductAttention,
)

kind, batch, length, heads, key_dim = sys.argv[1], *map(int, sys.argv[2:])
tf.config.threading.set_intra_op_parallelism_threads(1)
if kind == "multi-head":
    layer = MultiHeadAttention(heads, key_dim)
    states = tf.random.normal((batch, length, heads * key_dim))
    inputs, attend = [states], lambda states: layer(states, states)
elif kind.startswith("Keras"):
    layer = keras.layers.AdditiveAttention()
    inputs = [tf.random.normal((batch * heads, length, key_dim)) for _ in range(3)]

    def attend(query, key, value):
        return layer([query, value, key])

else:
    layer = {"dot-product": ScaledDotProductAttention, "additive": AdditiveAttention}[kind]()
    inputs = [tf.random.normal((batch, heads, length, key_dim)) for _ in range(3)]
    attend = layer
attend(*[one[:, ..., :1, :] for one in inputs])  # builds the layer


@tf.function
def step():
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        total = tf.reduce_sum(attend(*inputs) ** 2)
    return tape.gradient(total, [*inputs, *layer.trainable_variables])


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


before = peak()
step()
seconds, begin = [], time.perf_counter()
while len(seconds) < 3 or time.perf_counter() - begin < 2.0:
    start = time.perf_counter()
    step()[0].numpy()
    seconds.append(time.perf_counter() - start)
print(json.dumps({"seconds": statistics.median(seconds), "megabytes": peak() - before}))
