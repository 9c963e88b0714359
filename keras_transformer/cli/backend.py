"""Loading Keras with its backend, quietly."""

import contextlib
import os
import sys
from collections.abc import Iterator


def load_backend() -> None:
    """Imports Keras with its backend, without the backend's own lines on standard error.

    TensorFlow's C++ part writes several lines about GPUs and CPU features when it is imported,
    before any setting of its own can stop it; an error of ours would be lost among them. Commands
    call this after they have checked their arguments and before they import anything that computes.
    """
    if os.environ.get("KERAS_TRANSFORMER_DEBUG") == "1":
        return
    # Read once at import: only fatal messages of the C++ part, from then on.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with _standard_error_closed():
        import keras

        if keras.backend.backend() == "tensorflow":
            import tensorflow as tf

            tf.config.list_physical_devices()  # looks for GPUs, and complains where there is none


@contextlib.contextmanager
def _standard_error_closed() -> Iterator[None]:
    # The file descriptor, since C++ does not know `sys.stderr`.
    sys.stderr.flush()
    saved = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(nowhere)
