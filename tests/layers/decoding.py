"""Decoding with a cache, some positions at a time."""

import numpy as np

from tests.layers.oracle_parameters import array


def decode(call, inputs, cache, stops):
    """Feed `inputs` in pieces that end at `stops` to `call(piece, cache, stop)`.

    Returns:
        The joined outputs, and the last cache.
    """
    outputs, start = [], 0
    for stop in stops:
        result, cache = call(inputs[:, start:stop], cache, stop)
        outputs.append(array(result))
        start = stop
    return np.concatenate(outputs, axis=1), cache
