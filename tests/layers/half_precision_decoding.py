"""Prints, as JSON, how far decoding with a cache is from the whole pass, for kinds of attention.

A process of its own: it computes with oneDNN, as users do, which the tests leave out elsewhere.
"""

import itertools
import json

import keras
import numpy as np

from keras_transformer.layers import (
    AdditiveAttention,
    MultiHeadAttention,
    RelativePosition,
    RotaryPosition,
    ScaledDotProductAttention,
)

LENGTH, WIDTH = 17, 24
SCORES = {"dot": ScaledDotProductAttention, "additive": AdditiveAttention}
POSITIONS = {
    "none": lambda: None,
    "rotary": RotaryPosition,
    "relative": lambda: RelativePosition(3),
}
CACHES = {"growing": {}, "fixed": {"max_length": LENGTH}}
DTYPES = "bfloat16", "float16"


def in_steps(layer, states, num_new, **cache_options):
    """The outputs of decoding `num_new` positions after each other, `[batch, length, width]`."""
    cache = layer.make_cache(batch_size=len(states), **cache_options)
    outputs = []
    for start in range(0, LENGTH, num_new):
        new = states[:, start : start + num_new]
        output, cache = layer(new, new, cache=cache, use_causal_mask=True)
        outputs.append(keras.ops.convert_to_numpy(keras.ops.cast(output, "float32")))
    return np.concatenate(outputs, axis=1)


def differences():
    """Yields the name of each case, and the greatest difference relative to the outputs."""
    generator = np.random.default_rng(0)
    kinds = itertools.product(DTYPES, SCORES, POSITIONS, (None, 4))
    for number, (dtype, score, position, window) in enumerate(kinds):
        if (score, position) == ("additive", "relative"):
            continue  # refused: relative positions add to dot products
        batch = 1 + number % 3
        states = keras.ops.cast(generator.normal(size=(batch, LENGTH, WIDTH)), dtype)
        keras.config.set_dtype_policy(dtype)  # of the parts too
        options = {"position": POSITIONS[position](), "attention": SCORES[score]()}
        layer = MultiHeadAttention(4, 8, sliding_window=window, **options)
        whole = layer(states, states, use_causal_mask=True)
        whole = keras.ops.convert_to_numpy(keras.ops.cast(whole, "float32"))
        for (cache, cache_options), num_new in itertools.product(CACHES.items(), (1, 3, 5)):
            found = in_steps(layer, states, num_new, **cache_options)
            name = f"{dtype} {score} {position} window={window} {cache} batch={batch} by {num_new}"
            yield name, float(abs(found - whole).max() / abs(whole).max())


if __name__ == "__main__":
    print(json.dumps(dict(differences())))
