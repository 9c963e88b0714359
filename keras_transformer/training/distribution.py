"""Training on several devices of one machine."""

import contextlib
import functools

import keras

from keras_transformer.errors import UserError


def num_replicas(model=None) -> int:
    """Returns on how many replicas the current scope, or the one of `model`, trains.

    Args:
        model: optional `keras.Model`; if it was made in a strategy's scope, that strategy counts.

    Returns:
        int, 1 without a `tf.distribute` strategy and on other backends.

    Example:

    >>> from keras_transformer.training.distribution import num_replicas
    >>> num_replicas()
    1
    """
    if keras.backend.backend() != "tensorflow":
        return 1
    import tensorflow as tf

    strategy = getattr(model, "distribute_strategy", None) or tf.distribute.get_strategy()
    return strategy.num_replicas_in_sync


def mirrored_strategy(num_devices: int | None = None):
    """Makes a `tf.distribute.MirroredStrategy` over GPUs, or over logical CPU devices.

    A step on N replicas equals the step of one device on the same global batch: the weights of
    `TokenBatches` are divided by the tokens of the global batch before it is split, and the loss
    is a sum. Build and compile the model inside `strategy.scope()`.

    Args:
        num_devices: int, how many devices; None takes all GPUs.

    Returns:
        `tf.distribute.MirroredStrategy`.

    Raises:
        UserError: if there are not as many devices, or the backend is not TensorFlow.

    Example:

    >>> from keras_transformer.training import mirrored_strategy
    >>> mirrored_strategy(1).num_replicas_in_sync
    1
    """
    if keras.backend.backend() != "tensorflow":
        raise UserError(
            "Several devices need the TensorFlow backend. "
            f"Received: backend={keras.backend.backend()!r}"
        )
    import tensorflow as tf

    if num_devices is not None and num_devices < 1:
        raise UserError(f"At least one device is needed. Received: num_devices={num_devices!r}")
    kinds = {kind: tf.config.list_logical_devices(kind) for kind in ("GPU", "CPU")}
    devices = kinds["GPU"] or kinds["CPU"]
    wanted = len(kinds["GPU"]) or 1 if num_devices is None else num_devices
    if wanted > len(devices):
        found = f"{len(kinds['GPU'])} GPUs" if kinds["GPU"] else "no GPU"
        raise UserError(f"Asked for {wanted} devices, but this machine has {found}.")
    return _strategy(tuple(device.name for device in devices[:wanted]))


@functools.cache
def _strategy(device_names):
    """One strategy per set of devices: a second one reuses the first one's keys, and fails."""
    import tensorflow as tf

    return tf.distribute.MirroredStrategy(list(device_names))


def strategy_scope(strategy):
    """Returns `strategy.scope()`, or a context that does nothing if there is no strategy.

    Args:
        strategy: a `tf.distribute.Strategy` or None.

    Returns:
        context manager.

    Example:

    >>> from keras_transformer.training import strategy_scope
    >>> with strategy_scope(None):
    ...     pass
    """
    return contextlib.nullcontext() if strategy is None else strategy.scope()


def model_scope(model):
    """Returns the scope of the strategy that a model was made in; variables are made inside it.

    Args:
        model: `keras.Model`.

    Returns:
        context manager.

    Example:

    >>> import keras
    >>> from keras_transformer.training.distribution import model_scope
    >>> with model_scope(keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])):
    ...     pass
    """
    return strategy_scope(getattr(model, "distribute_strategy", None))


def enable_determinism() -> None:
    """Makes TensorFlow choose operations that give the same bits every time, in this process.

    Without them sums over threads may differ in their last bits from run to run.
    """
    import tensorflow as tf

    tf.config.experimental.enable_op_determinism()
