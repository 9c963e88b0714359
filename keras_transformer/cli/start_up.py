"""Importing Keras and its backend without the start-up lines of TensorFlow."""

import contextlib
import os
import sys
from collections.abc import Iterator


def import_keras() -> None:
    """Imports Keras, without its backend's own lines on standard error.

    TensorFlow's C++ part writes several lines about GPUs and CPU features when it is imported,
    before any setting of its own can stop it; what a program prints would be lost among them.
    Later lines are those of `TF_CPP_MIN_LOG_LEVEL`, which is 3 (only fatal ones) unless it is set.
    With `KERAS_TRANSFORMER_DEBUG=1` nothing is hidden.
    """
    with hidden_standard_error():
        import keras  # noqa: F401


@contextlib.contextmanager
def hidden_standard_error() -> Iterator[None]:
    """Hides what is written to standard error, unless `KERAS_TRANSFORMER_DEBUG=1`."""
    if os.environ.get("KERAS_TRANSFORMER_DEBUG") == "1":
        yield
        return
    # TensorFlow reads it once, when it is imported.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        # The file descriptor, since C++ does not know `sys.stderr`.
        saved = os.dup(2)
    except OSError:  # There is no standard error to hide.
        yield
        return
    try:
        if sys.stderr is not None:
            sys.stderr.flush()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 2)
        os.close(nowhere)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
