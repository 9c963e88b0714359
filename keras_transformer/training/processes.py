"""`ProcessGroup`: the processes of one machine or several that train one model."""

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

JOIN_SECONDS = 120.0  # until all processes have to be there
# JAX aborts the processes that are left after one has been silent for this long, or waits in vain
# for the others at its end.
_SECONDS_TO_NOTICE = 20
_HEADER, _SHORTEST = 12, 256  # bytes of an exchange


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
