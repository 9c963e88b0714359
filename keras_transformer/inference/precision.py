"""Chooses the precision in which this machine multiplies fastest."""

import logging
import time

import keras
from keras import ops

from keras_transformer.settings.transformer_config import TransformerConfig

_LOGGER = logging.getLogger(__name__)
_NUM_ROWS, _NUM_RUNS = 64, 9
# Minimum speedup of products; other operations are no faster in bfloat16.
_WORTHWHILE = 1.25


def choose_precision(dtype: str | None, config: TransformerConfig) -> str | None:
    """Returns the dtype; for `"auto"`, `"bfloat16"` if it is clearly faster, else `"float32"`.

    `"auto"` measures the product of 64 rows and the output projection, and logs the result.

    Args:
        dtype: Dtype policy, `"auto"` or None.
        config: `TransformerConfig` of the model.

    Example:

    >>> from keras_transformer.inference.precision import choose_precision
    >>> from keras_transformer.models import TransformerConfig
    >>> choose_precision("auto", TransformerConfig(vocab_size=100)) in ("float32", "bfloat16")
    True
    """
    if dtype != "auto":
        return dtype
    ratio = _seconds("float32", config) / _seconds("bfloat16", config)
    chosen = "bfloat16" if ratio >= _WORTHWHILE else "float32"
    _LOGGER.info(
        "This machine multiplies bfloat16 %.1f times as fast as float32: %s", ratio, chosen
    )
    return chosen


def _seconds(dtype, config):
    """Returns the shortest of several measured times of a product, in seconds."""
    rows = keras.random.normal((_NUM_ROWS, config.d_model), dtype=dtype)
    matrix = keras.random.normal((config.d_model, config.output_vocab_size), dtype=dtype)
    times = []
    for _ in range(_NUM_RUNS):
        start = time.perf_counter()
        float(ops.matmul(rows, matrix)[0, 0])  # waits for the result
        times.append(time.perf_counter() - start)
    return min(times)
