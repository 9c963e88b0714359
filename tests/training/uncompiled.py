"""Steps of `train` that are not compiled, and a callback that acts at a step, for its tests."""

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


class AtStep(keras.callbacks.Callback):
    """Calls a function with the model after a step, or before it."""

    def __init__(self, step, function, before=False):
        super().__init__()
        self.step = step
        self.function = function
        self.before = before

    def on_train_batch_begin(self, batch, logs=None):
        if self.before and self.model.optimizer.iterations == self.step - 1:
            self.function(self.model)

    def on_train_batch_end(self, batch, logs=None):
        if not self.before and self.model.optimizer.iterations == self.step:
            self.function(self.model)


def stop(model):
    model.stop_training = True
