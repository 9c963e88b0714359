"""Training without compiling its steps: to trace a graph takes longer than a few steps of it."""

import contextlib
import warnings

import keras

# For `compile`: JAX would compile each operation instead.
RUN_EAGERLY = keras.backend.backend() != "jax"


@contextlib.contextmanager
def uncompiled():
    """Runs what TensorFlow would compile operation by operation."""
    import tensorflow as tf

    tf.config.run_functions_eagerly(True)
    try:
        with warnings.catch_warnings():
            # The functions of tf.data are compiled all the same, which TensorFlow warns of.
            warnings.filterwarnings("ignore", "Even though the `tf.config", UserWarning)
            yield
    finally:
        tf.config.run_functions_eagerly(False)
