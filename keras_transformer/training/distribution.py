"""The devices of a training."""

import contextlib
from typing import Any

import keras

from keras_transformer.errors import UserError
from keras_transformer.training.processes import process_group

# Strategies by their devices. Each numbers its exchanges between devices from 1 on, so that a
# process cannot use two of them, except one of a single device.
_strategies: dict[tuple[str, ...], Any] = {}


def mirrored_strategy(num_devices: int | None = None) -> Any:
    """Returns a `tf.distribute.MirroredStrategy` over GPUs, or over logical CPU devices.

    A step on N replicas equals the step of one device on the same global batch, with the weights of
    `TokenBatches` and a loss that is a sum. Build and compile the model inside `strategy.scope()`.

    Args:
        num_devices: Number of devices; None takes all GPUs, or one CPU if there is no GPU.

    Raises:
        UserError: If there are fewer devices, the backend is not TensorFlow, or this process has
            used a strategy of several other devices.

    Example:

    >>> keras_transformer.training.mirrored_strategy(1).num_replicas_in_sync
    1
    """
    if (backend := keras.backend.backend()) != "tensorflow":
        raise UserError(f"Several devices need the TensorFlow backend. Received: {backend=}")
    import tensorflow as tf

    if num_devices is not None and num_devices < 1:
        raise UserError(f"At least one device is needed. Received: {num_devices=}")
    gpus = tf.config.list_logical_devices("GPU")
    devices = gpus or tf.config.list_logical_devices("CPU")
    wanted = num_devices or len(gpus) or 1
    if wanted > len(devices):
        available = f"{len(gpus)} GPUs" if gpus else "no GPU"
        raise UserError(f"Asked for {wanted} devices, but this machine has {available}.")
    names = [device.name for device in devices[:wanted]]
    return registered_strategy(tf.distribute.MirroredStrategy(names))


def registered_strategy(strategy: Any) -> Any:
    """Returns the first strategy of the same devices; `UserError` if there is one of others."""
    devices = tuple(name.rpartition("device:")[2] for name in strategy.extended.worker_devices)
    for others in _strategies:
        if others != devices and 1 not in (len(others), len(devices)):
            rule = f"This process has used a strategy of the devices {', '.join(others)}, and can "
            received = f"a strategy of {', '.join(devices)}"
            raise UserError(f"{rule}use no other one. Start a new process. Received: {received}")
    return _strategies.setdefault(devices, strategy)


def make_distribution(
    num_devices: int | None = None, model_parallel: int = 1
) -> keras.distribution.DataParallel | keras.distribution.ModelParallel | None:
    """Returns the distribution over the devices of all processes, for Keras on JAX.

    A step on N devices equals the step of one device on the same global batch. Each process passes
    its rows of the batch.

    Args:
        num_devices: Number of devices of each process; None for one.
        model_parallel: Number of devices that share each matrix, by `model_parallel_layout`. Each
            group of this many devices computes some rows of the batch.

    Returns:
        A `DataParallel` or `ModelParallel`; None for a single device.

    Raises:
        UserError: If there are fewer devices, `model_parallel` does not divide their number, or it
            is above 1 with several processes.

    Example:

    >>> keras_transformer.training.make_distribution(1)  # None
    """
    num_devices, processes = num_devices or 1, range(process_group().num_processes)
    if num_devices == model_parallel == len(processes) == 1:
        return None
    import jax

    of_process = [[d for d in jax.devices() if d.process_index == number] for number in processes]
    if (fewest := min(map(len, of_process))) < num_devices:
        kind = jax.devices()[0].platform
        rule = f"Asked for {num_devices} devices, but each process has {fewest}, of kind {kind!r}"
        raise UserError(f"{rule}. Received: {num_devices=}")
    if num_devices % model_parallel or (model_parallel > 1 and len(processes) > 1):
        rule = "`model_parallel` must divide the number of devices, of a single process"
        received = f"{model_parallel=}, {num_devices=}, {len(processes)} processes"
        raise UserError(f"{rule}. Received: {received}")
    devices = [f"{d.platform}:{d.id}" for local in of_process for d in local[:num_devices]]
    if model_parallel == 1:
        return keras.distribution.DataParallel(devices=devices, auto_shard_dataset=False)
    shape = len(devices) // model_parallel, model_parallel
    mesh = keras.distribution.DeviceMesh(shape, ["batch", "model"], devices)
    layout = model_parallel_layout(mesh)
    return keras.distribution.ModelParallel(
        layout_map=layout, batch_dim_name="batch", auto_shard_dataset=False
    )


def strategy_scope(strategy: Any) -> contextlib.AbstractContextManager:
    """Returns `strategy.scope()`, or a context that does nothing if there is no strategy.

    Args:
        strategy: A `tf.distribute.Strategy`, a distribution of `keras.distribution`, or None.

    Example:

    >>> with keras_transformer.training.strategy_scope(None):
    ...     pass
    """
    return contextlib.nullcontext() if strategy is None else strategy.scope()


def model_scope(model: keras.Model) -> contextlib.AbstractContextManager:
    """Returns the scope of the strategy that `model` was made in; variables are made inside it."""
    return strategy_scope(getattr(model, "distribute_strategy", None))


def model_parallel_layout(
    device_mesh: keras.distribution.DeviceMesh, axis: str = "model"
) -> keras.distribution.LayoutMap:
    """Returns the layout over devices of this library's weights and their Adam moments.

    For `keras.distribution.ModelParallel`, which Keras supports on JAX. The size of `axis` must
    divide the number of heads, the width of the feed-forward layers and the vocabulary.

    Args:
        device_mesh: `keras.distribution.DeviceMesh`.
        axis: Name of the mesh's axis over which weights are cut; the others share out the batch.

    Example:

    >>> mesh = keras.distribution.DeviceMesh((1, 1), ["batch", "model"], ["cpu:0"])
    >>> layout = keras_transformer.training.model_parallel_layout(mesh)
    >>> layout["transformer/encoder/block_0/attention/query/kernel"].axes
    (None, 'model')

    Reference: Shoeybi et al. (2019), "Megatron-LM", section 3.
    """
    # Each head, and each unit of a feed-forward layer, is on one device: the first matrix is cut by
    # columns, the second by rows, and only the outputs of the second are summed over the devices.
    axes = {
        "(query|key|value|inner)[/_]kernel": (None, axis),
        "((output|outer)[/_]kernel|embeddings)": (axis, None),
        "(query|key|value|inner)[/_]bias": (axis,),
    }
    # Optimizers replace the slashes in the path of a variable.
    layout = keras.distribution.LayoutMap(device_mesh)
    for names, cut in axes.items():
        layout[f".*{names}.*"] = cut
    return layout
