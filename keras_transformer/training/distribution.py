"""The devices and the processes of a training, of one machine or several."""

import collections
import contextlib
import dataclasses
import json
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from keras_transformer.errors import UserError, one_line

# Strategies by their devices. Each numbers its exchanges between devices from 1 on, so that a
# process cannot use two of them, except one of a single device.
_strategies: dict[tuple[str, ...], Any] = {}
JOIN_SECONDS = 120.0  # until all processes have to be there
# JAX aborts the processes that are left after one has been silent for this long, or waits in vain
# for the others at its end.
_SECONDS_TO_NOTICE = 20
_HEADER, _SHORTEST = 12, 256  # bytes of an exchange


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


@dataclasses.dataclass(frozen=True)
class ProcessGroup:
    """The processes that train one model together; without arguments a single process.

    Values are exchanged as JSON, by computations of JAX on the devices of all processes. So the
    processes must call the methods in the same order, and none may leave one out.

    Args:
        process_id: Number of this process, from 0.
        num_processes: Number of all processes.

    Example:

    >>> group = keras_transformer.training.ProcessGroup()
    >>> group.gather("value"), group.share(sorted, [3, 4])
    (['value'], [3, 4])
    """

    process_id: int = 0
    num_processes: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this is process 0, which writes the files."""
        return self.process_id == 0

    def gather(self, value: Any) -> list:
        """Returns the values of all processes, in the order of their numbers, in each of them.

        Args:
            value: JSON-serializable value; others become strings.
        """
        if self.num_processes == 1:
            return [value]
        text = json.dumps(value, default=str).encode()
        message = f"{len(text):<{_HEADER}}".encode() + text
        rows = _exchange(message, _SHORTEST)
        # Powers of two, because JAX compiles each size.
        needed = _HEADER + max(int(row[:_HEADER]) for row in rows)
        if needed > _SHORTEST:
            rows = _exchange(message, 1 << (needed - 1).bit_length())
        return [json.loads(row[_HEADER:]) for row in rows]

    def in_first(self, function: Callable, *args: Any) -> Any:
        """Returns the result of `function(*args)`, called in process 0; the others wait for it.

        Args:
            function: Returns a JSON-serializable value.
            *args: Its arguments.
        """
        return self.gather(function(*args) if self.is_first else None)[0]

    def share(self, function: Callable[[Sequence], Sequence], items: Sequence) -> list:
        """Returns `function(items)`, of which each process computes a share.

        Args:
            function: From a sequence to as many JSON-serializable values, each of one item.
            items: Sequence, the same in all processes.
        """
        results: list = [None] * len(items)
        share = items[self.process_id :: self.num_processes]
        for number, values in enumerate(self.gather(list(function(share)) if share else [])):
            results[number :: self.num_processes] = values
        return results

    def check_equal(self, values: Mapping) -> None:
        """Raises a `UserError` in all processes if these values differ among them.

        Args:
            values: Nested dict of JSON-serializable values.
        """
        first, *others = (
            {".".join(map(str, path)): value for path, value in keras.tree.flatten_with_path(each)}
            for each in self.gather(values)
        )
        for number, other in enumerate(others, 1):
            for name in {**first, **other}:
                if first.get(name) != other.get(name):
                    raise UserError(
                        f"Processes of one training must agree. Received: {name}="
                        f"{other.get(name)!r} in process {number}, {first.get(name)!r} in process 0"
                    )


def process_group() -> ProcessGroup:
    """Returns the group of this process: that of `joined_processes`, or a single process.

    Example:

    >>> keras_transformer.training.process_group().num_processes
    1
    """
    if keras.backend.backend() == "jax":
        import jax

        if jax.distributed.is_initialized():
            return ProcessGroup(jax.process_index(), jax.process_count())
    return ProcessGroup()


@contextlib.contextmanager
def joined_processes(
    coordinator: str,
    num_processes: int | None = None,
    process_id: int | None = None,
    timeout: float = JOIN_SECONDS,
) -> Iterator[ProcessGroup]:
    """Joins this process with those of other machines into one training, inside a `with` block.

    `train` inside the block trains one model in all of them. Each process must call it with the
    same arguments and text. Needs Keras on JAX, must come before any computation, and a process can
    join once. If a process dies or does not come, JAX aborts the others, with its own message.

    Args:
        coordinator: `"HOST:PORT"` of process 0, or `"auto"` on a cluster that JAX knows, such as
            Slurm, Kubernetes or TPU pods, which gives the numbers too.
        num_processes: Number of processes; None with `"auto"`.
        process_id: Number of this one, from 0; None with `"auto"`.
        timeout: Seconds until all processes have to be there.

    Yields:
        The `ProcessGroup`.

    Raises:
        UserError: If the backend is not JAX, an argument is wrong, process 0 cannot listen at its
            address, or the processes have different numbers of devices.

    Example:

    >>> processes = keras_transformer.training.joined_processes("host0:12345", 2, process_id=0)
    >>> hasattr(processes, "__enter__")  # `with processes:` waits for process 1
    True
    """
    if (backend := keras.backend.backend()) != "jax":
        rule = "Several processes need Keras on JAX: set KERAS_BACKEND=jax"
        raise UserError(f"{rule}. Received: {backend=}")
    import jax

    if coordinator != "auto":
        options = _options_of_address(coordinator, num_processes, process_id)
    elif (num_processes, process_id) == (None, None):
        options = {}
    else:
        rule = "A cluster gives the numbers of processes itself"
        raise UserError(f"{rule}. Received: {coordinator=}, {num_processes=}, {process_id=}")
    _initialize(coordinator, timeout, options)
    group = process_group()
    if num_processes not in (None, group.num_processes):
        rule = f"Process 0 was started for {group.num_processes} processes"
        raise UserError(f"{rule}. Received: {num_processes=} in process {process_id}")
    counts = collections.Counter(device.process_index for device in jax.devices())
    if len(set(counts.values())) > 1:
        rule = "Each process needs the same number of devices, such as by CUDA_VISIBLE_DEVICES"
        raise UserError(f"{rule}. Received: {dict(counts)}")
    # After an exception, JAX leaves the others at the end of the program: they end too.
    yield group
    group.gather(None)  # This waits without a limit, unlike JAX's end.
    jax.distributed.shutdown()


def _initialize(coordinator, timeout, options):
    import jax

    # The signals of all processes are gathered at each step, in some 4 ms on two cores. Asking
    # JAX's preemption service takes no time, but it knows SIGTERM alone, replaces Python's handler
    # of it, and no time limit can call it.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        with _default_signals():
            jax.distributed.initialize(
                initialization_timeout=int(timeout),
                heartbeat_timeout_seconds=_SECONDS_TO_NOTICE,
                shutdown_timeout_seconds=_SECONDS_TO_NOTICE,
                **options,
            )
    except (ValueError, RuntimeError) as error:
        if coordinator != "auto":
            raise
        rule = "JAX finds no cluster here: give --coordinator HOST:PORT"
        raise UserError(f"{rule}. Received: coordinator='auto' ({one_line(error)})") from error


def _options_of_address(coordinator, num_processes, process_id):
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        rule = "The coordinator is HOST:PORT, with a port from 1 to 65535, or auto"
        raise UserError(f"{rule}. Received: {coordinator!r}")
    if num_processes is None or process_id is None or not 0 <= process_id < num_processes:
        rule = "A coordinator needs the number of processes, and a process_id from 0 and below it"
        raise UserError(f"{rule}. Received: {num_processes=}, {process_id=}")
    bind_address = os.environ.get("JAX_COORDINATOR_BIND_ADDRESS", coordinator)
    if process_id == 0:  # JAX crashes if it cannot listen there.
        try:
            host, _, port = bind_address.rpartition(":")
            family, *_, address = socket.getaddrinfo(host.strip("[]"), port)[0]
            socket.create_server(address[:2], family=family).close()
        except OSError as error:
            rule = f"Process 0 cannot listen at {bind_address}"
            raise UserError(f"{rule}: {error.strerror}. Received: {coordinator=}") from error
    return {
        "coordinator_address": coordinator,
        "num_processes": num_processes,
        "process_id": process_id,
        "coordinator_bind_address": bind_address,
        "cluster_detection_method": "deactivate",
    }


@contextlib.contextmanager
def _default_signals():
    """Lets signals end the process: JAX waits in C++, where Python's handlers do not run."""
    handlers = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            if callable(signal.getsignal(number)):
                handlers[number] = signal.signal(number, signal.SIG_DFL)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _exchange(message: bytes, size: int) -> list[bytes]:
    """Returns the first bytes of the messages of all processes, filled with spaces."""
    from jax.experimental import multihost_utils

    row = np.frombuffer(message[:size].ljust(size), "uint8")
    return [row.tobytes() for row in multihost_utils.process_allgather(row)]
