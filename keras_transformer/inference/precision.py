"""The choice of the precision that this machine multiplies fastest in."""

import logging
import time

import keras
from keras import ops

from keras_transformer.settings.transformer_config import TransformerConfig

_LOGGER = logging.getLogger(__name__)
_NUM_ROWS, _NUM_RUNS = 64, 9
# Operations other than products are no faster in bfloat16.
_WORTHWHILE = 1.25


def choose_precision(dtype: str | None, config: TransformerConfig) -> str | None:
    """Returns the dtype, or for `"auto"` the faster one of `"float32"` and `"bfloat16"`.

    It measures the product of 64 rows and the largest matrix of a model, and logs the result.

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
    """Returns the time of a product, without interruptions."""
    rows = keras.random.normal((_NUM_ROWS, config.d_model), dtype=dtype)
    matrix = keras.random.normal((config.d_model, config.output_vocab_size), dtype=dtype)
    times = []
    for _ in range(_NUM_RUNS):
        start = time.perf_counter()
        float(ops.matmul(rows, matrix)[0, 0])  # waits for the result
        times.append(time.perf_counter() - start)
    return min(times)
