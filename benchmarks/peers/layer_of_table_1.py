"""Measures a forward and a backward pass of a layer of Table 1: seconds, increase of peak memory.

Usage: layer_of_table_1.py KIND LENGTH WIDTH SIZE

SIZE is the kernel size of a convolution, or the window of restricted self-attention.
"""

import json
import resource
import statistics
import sys
import time

import keras
import tensorflow as tf

from keras_transformer.layers import MultiHeadAttention

kind, length, width, size = sys.argv[1], *map(int, sys.argv[2:])
tf.config.threading.set_intra_op_parallelism_threads(1)
HEADS = 1


def attention(make, **options):
    layer = make(HEADS, width // HEADS, use_bias=False, **options)
    return lambda inputs: layer(inputs, inputs)


LAYERS = {
    "self-attention": lambda: attention(MultiHeadAttention, flash_attention=False),
    "by blocks": lambda: attention(MultiHeadAttention, flash_attention=True),
    "restricted": lambda: attention(MultiHeadAttention, sliding_window=size),
    "Keras, restricted": lambda: attention(keras.layers.MultiHeadAttention, sliding_window=size),
    "LSTM": lambda: keras.layers.LSTM(width, return_sequences=True),
    "GRU": lambda: keras.layers.GRU(width, return_sequences=True),
    "convolution": lambda: keras.layers.Conv1D(width, size, padding="same"),
    "dilated convolution": lambda: keras.layers.Conv1D(
        width, size, padding="same", dilation_rate=size
    ),
    "separable convolution": lambda: keras.layers.SeparableConv1D(width, size, padding="same"),
}
layer = LAYERS[kind]()
inputs = tf.random.normal((1, length, width))


@tf.function
def step():
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        total = tf.reduce_sum(layer(inputs) ** 2)
    return tape.gradient(total, inputs)


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


before = peak()
step()
seconds, begin = [], time.perf_counter()
while len(seconds) < 3 or time.perf_counter() - begin < 2.0:
    start = time.perf_counter()
    step().numpy()
    seconds.append(time.perf_counter() - start)
print(json.dumps({"seconds": statistics.median(seconds), "megabytes": peak() - before}))
