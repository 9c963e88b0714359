"""`ProcessGroup`: the processes of one training, which exchange small values over TCP."""

import atexit
import contextlib
import itertools
import json
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_transformer.errors import StoppedBySignal, UserError, one_line

JOIN_SECONDS = 120.0  # until all processes have to be there
_LONGEST_ADDRESS = 512
_HELLO_SECONDS, _RETRY_SECONDS, _SECONDS_TO_NOTICE = 10.0, 0.2, 2.0
_CONNECT_SECONDS = 20  # of JAX, in processes that are all there
# A machine that falls silent is noticed after 10 + 4 x 5 seconds. Windows lacks some of the names.
_KEEP_ALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPALIVE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4}
_KEEP_ALIVE |= {"TCP_USER_TIMEOUT": 30_000}


class ProcessGroup:
    """The processes that train one model together; without arguments a single process.

    Process 0 is connected with every other one. Values are exchanged as JSON, and the processes
    must call the methods in the same order. Unlike in a computation of JAX, processes notice when
    another one ends, and end too, with a line that names it: at once, or after 30 seconds if its
    machine is lost.

    Args:
        process_id: Number of this process, from 0.
        num_processes: Number of all processes.
        connections: Connected sockets by process: to all others in process 0, to 0 in the others.

    Example:

    >>> group = keras_transformer.training.ProcessGroup()
    >>> group.gather("value"), group.share(sorted, [3, 4])
    (['value'], [3, 4])
    """

    def __init__(
        self,
        process_id: int = 0,
        num_processes: int = 1,
        connections: Mapping[int, socket.socket] | None = None,
    ):
        self.process_id = process_id
        self.num_processes = num_processes
        self._connections = dict(connections or {})
        self._received: dict[int, queue.SimpleQueue] = {}
        self._is_finished = False
        # Standard error may be hidden for a while.
        self._error_output = os.dup(2) if self._connections else None
        for number, connection in self._connections.items():
            self._received[number] = queue.SimpleQueue()
            _keep_alive(connection)
            threading.Thread(target=self._read, args=(number, connection), daemon=True).start()

    @property
    def is_first(self) -> bool:
        """Whether this is process 0, which writes the files."""
        return self.process_id == 0

    def gather(self, value: Any) -> list:
        """Returns the values of all processes, in the order of their numbers, in each of them.

        Args:
            value: JSON-serializable value; others become strings.
        """
        return self._gather(value, is_last=False)

    def _gather(self, value, is_last):
        if self.num_processes == 1:
            return [value]
        if not self.is_first:
            self._send(0, {"value": value})
            return self._received[0].get()
        value = json.loads(json.dumps(value, default=str))  # as the others get it
        values = [value, *(self._received[n].get() for n in range(1, self.num_processes))]
        self._is_finished |= is_last
        for number in self._connections:
            self._send(number, {"value": values, "is_last": is_last})
        return values

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
        first, *others = map(_flat, self.gather(values))
        for number, other in enumerate(others, 1):
            for name in {**first, **other}:
                if first.get(name) != other.get(name):
                    self.finish()  # All processes raise this.
                    raise UserError(
                        f"Processes of one training must agree. Received: {name}="
                        f"{other.get(name)!r} in process {number}, {first.get(name)!r} in process 0"
                    )

    def finish(self) -> None:
        """Waits until all processes call this; each of them may end then."""
        self._gather(None, is_last=True)

    def leave(self, error: BaseException) -> None:
        """Tells the other processes why this one ends, so that they end too.

        Args:
            error: The exception that ends this process.
        """
        if not self._is_finished:
            self._is_finished = True
            self._tell(self.process_id, one_line(error))

    def close(self) -> None:
        """Closes the connections; the group cannot be used afterwards."""
        self._is_finished = True
        for connection in self._connections.values():
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        if self._error_output is not None:
            os.close(self._error_output)
            self._error_output = None

    def _send(self, number, message):
        try:
            text = json.dumps(message, default=str)
            self._connections[number].sendall(text.encode() + b"\n")
        except OSError:
            self._end(number, "its connection broke")

    def _tell(self, number, reason):
        line = json.dumps({"ended": [number, reason]}).encode() + b"\n"
        for connection in self._connections.values():
            with contextlib.suppress(OSError):
                connection.sendall(line)

    def _read(self, number, connection):
        """Puts the values of a process into its queue, until it ends."""
        reason = "it was killed, or its machine was lost"
        with contextlib.suppress(OSError, ValueError), connection.makefile("rb") as lines:
            for line in lines:
                message = json.loads(line)
                if "ended" in message:
                    number, reason = message["ended"]
                    self._end(number, reason, has_left=True)
                    return
                self._is_finished |= message.get("is_last", False)
                self._received[number].put(message["value"])
        self._end(number, reason)

    def _end(self, number, reason, has_left=False):
        """Ends this process, whose other threads may wait for one that has ended, unless all do."""
        if self._is_finished:
            return
        self._is_finished = True
        self._tell(number, reason)
        line = f"Process {number} of {self.num_processes} has ended: {reason.rstrip('.')}. "
        line += f"So process {self.process_id} ends too"
        line += "." if has_left else "; the same command goes on from the last checkpoint."
        with contextlib.suppress(OSError):
            os.write(self._error_output or 2, f"\n{line}\n".encode())
        os._exit(1)  # A computation that waits for the other process cannot be interrupted.


_group = ProcessGroup()
_relay: subprocess.Popen | None = None  # It ends when its standard input does, with this process.


def process_group() -> ProcessGroup:
    """Returns the group of this process: that of `joined_processes`, or a single process.

    Example:

    >>> keras_transformer.training.process_group().num_processes
    1
    """
    return _group


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
    join once.

    Args:
        coordinator: `"HOST:PORT"` of process 0, or `"auto"` on a cluster that JAX knows, such as
            Slurm, Kubernetes or TPU pods, which gives the numbers too.
        num_processes: Number of processes; None with `"auto"`.
        process_id: Number of this one, from 0; None with `"auto"`.
        timeout: Seconds until all processes have to be there.

    Yields:
        The `ProcessGroup`.

    Raises:
        UserError: If the backend is not JAX, an argument is wrong or given twice, the port is in
            use, or a process does not come.

    Example:

    >>> processes = keras_transformer.training.joined_processes("host0:12345", 2, process_id=0)
    >>> hasattr(processes, "__enter__")  # `with processes:` waits for process 1
    True
    """
    global _group
    if (backend := keras.backend.backend()) != "jax":
        rule = "Several processes need Keras on JAX: set KERAS_BACKEND=jax"
        raise UserError(f"{rule}. Received: {backend=}")
    import jax

    if coordinator == "auto":
        if (num_processes, process_id) != (None, None):
            rule = "A cluster gives the numbers of processes itself"
            raise UserError(f"{rule}. Received: {coordinator=}, {num_processes=}, {process_id=}")
        _group = _find_cluster(timeout)
    else:
        _group = _join(coordinator, num_processes, process_id, timeout)
    try:
        yield _group
        _group.finish()
        jax.distributed.shutdown()
    except BaseException as error:
        if not isinstance(error, UserError | KeyboardInterrupt):
            time.sleep(_SECONDS_TO_NOTICE)  # It may come from the death of another process.
        _group.leave(error)
        atexit.register(_exit, error)
        raise
    finally:
        _group.close()
        _group = ProcessGroup()


def _exit(error):
    """Exits with the status of the commands, without JAX's end, which waits for all processes."""
    sys.stdout.flush()
    sys.stderr.flush()
    is_signal = isinstance(error, StoppedBySignal)
    os._exit(128 + error.signal_number if is_signal else 2 if isinstance(error, UserError) else 1)


def _join(coordinator, num_processes, process_id, timeout):
    import jax

    host, port = _address(coordinator)
    if num_processes is None or process_id is None or not 0 <= process_id < num_processes:
        rule = "A coordinator needs the number of processes, and a process_id from 0 and below it"
        raise UserError(f"{rule}. Received: {num_processes=}, {process_id=}")
    if process_id == 0:
        with _listen(port) as listener, _listen(0) as free:
            port = free.getsockname()[1]
            connections = _accept(listener, num_processes, timeout, {"port": port})
    else:
        connections, welcome = _connect([host], port, num_processes, process_id, timeout)
        port = _start_relay(host, welcome["port"])
    group = ProcessGroup(process_id, num_processes, connections)
    # JAX holds Python's lock while it waits for other processes, and no thread could notice that
    # one of them has ended. So all processes begin this wait together, and it is short.
    group.gather(None)
    try:
        jax.distributed.initialize(
            f"localhost:{port}",
            num_processes,
            process_id,
            cluster_detection_method="deactivate",
            initialization_timeout=_CONNECT_SECONDS,
        )
        jax.devices()
    except RuntimeError:  # `_read` says why, if another process has ended.
        time.sleep(_SECONDS_TO_NOTICE)
        raise
    return group


def _start_relay(host, port) -> int:
    """Returns the port of a `relay` to an address, which ends with this process."""
    global _relay
    command = [sys.executable, "-I", str(Path(__file__).with_name("relay.py")), host, str(port)]
    pipe = subprocess.PIPE
    _relay = subprocess.Popen(command, stdin=pipe, stdout=pipe, start_new_session=True)
    output: Any = _relay.stdout
    return int(output.readline())


def _find_cluster(timeout):
    import jax
    from jax.experimental import multihost_utils

    try:
        jax.distributed.initialize(initialization_timeout=int(timeout))
    except (ValueError, RuntimeError) as error:
        rule = "JAX finds no cluster here: give --coordinator HOST:PORT"
        raise UserError(f"{rule}. Received: coordinator='auto' ({one_line(error)})") from error
    num_processes, process_id = jax.process_count(), jax.process_index()
    if num_processes == 1:
        return ProcessGroup()
    address = np.zeros(_LONGEST_ADDRESS, "uint8")
    with _listen(0) as listener:
        # Either may be unknown on the other machines: names in Kubernetes, addresses in Debian.
        hosts = [socket.getfqdn(), socket.gethostbyname(socket.gethostname())]
        text = json.dumps([hosts, listener.getsockname()[1]]).encode()
        address[: len(text)] = np.frombuffer(text, "uint8")
        address = multihost_utils.broadcast_one_to_all(address)
        if process_id == 0:
            connections = _accept(listener, num_processes, timeout, {})
        else:
            hosts, port = json.loads(np.asarray(address).tobytes().rstrip(b"\0"))
            connections, _ = _connect(hosts, port, num_processes, process_id, timeout)
    return ProcessGroup(process_id, num_processes, connections)


def _address(coordinator):
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        rule = "The coordinator is HOST:PORT, with a port from 1 to 65535, or auto"
        raise UserError(f"{rule}. Received: {coordinator!r}")
    return host.strip("[]"), int(port)


def _listen(port):
    try:
        if socket.has_dualstack_ipv6():
            return socket.create_server(
                ("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=128
            )
        return socket.create_server(("", port), backlog=128)
    except OSError as error:
        raise UserError(f"Port {port} cannot be used on this machine: {error.strerror}.") from error


def _accept(listener, num_processes, timeout, welcome):
    """Returns the connections of the other processes by number, when all of them are there."""
    connections: dict[int, socket.socket] = {}
    problem, deadline = "", time.monotonic() + timeout
    while len(connections) < num_processes - 1 and not problem:
        try:
            listener.settimeout(max(deadline - time.monotonic(), 0.001))
            connection, _ = listener.accept()
        except TimeoutError:
            missing = [str(n) for n in range(1, num_processes) if n not in connections]
            problem = f"did not come within {timeout:g} seconds. Start all of them"
            problem = f"Of {num_processes} processes, {', '.join(missing)} {problem}."
            break
        try:
            connection.settimeout(_HELLO_SECONDS)
            number, count = map(int, json.loads(_read_line(connection)))
        except (OSError, ValueError, TypeError):  # another program
            connection.close()
            continue
        if count != num_processes:
            problem = f"Process {number} was started for {count} processes, process 0 for "
            problem += f"{num_processes}."
        elif number in connections or not 0 < number < num_processes:
            problem = f"Two processes were started with the number {number}."
        connections[number if not problem else -1] = connection
    for connection in connections.values():
        connection.settimeout(None)
        with contextlib.suppress(OSError):
            connection.sendall(json.dumps({"error": problem} | welcome).encode() + b"\n")
    if problem:
        raise UserError(problem)
    return connections


def _connect(hosts, port, num_processes, process_id, timeout):
    """Returns the connection to process 0, by its number, and its welcome."""
    deadline, where = time.monotonic() + timeout, f"{' or '.join(hosts)}, port {port}"
    for host in itertools.cycle(hosts):
        try:
            connection = socket.create_connection((host, port), timeout=_HELLO_SECONDS)
            break
        except OSError as error:
            if time.monotonic() > deadline:
                problem = f"No process 0 answers at {where}: {one_line(error)}. Start it there"
                raise UserError(f"{problem}, or give its address to all processes.") from error
            time.sleep(_RETRY_SECONDS)
    try:
        connection.sendall(json.dumps([process_id, num_processes]).encode() + b"\n")
        connection.settimeout(timeout + _HELLO_SECONDS)
        welcome = json.loads(_read_line(connection))
    except (OSError, ValueError) as error:
        raise UserError(f"The program at {where} is not process 0 of a training.") from error
    if welcome["error"]:
        raise UserError(welcome["error"])
    connection.settimeout(None)
    return {0: connection}, welcome


def _read_line(connection):
    """Reads a short line, and nothing behind it."""
    line = b""
    while not line.endswith(b"\n") and len(line) < 2**16:
        if not (byte := connection.recv(1)):
            break
        line += byte
    return line


def _keep_alive(connection):
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for name, value in _KEEP_ALIVE.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _flat(values, prefix=""):
    """Returns the values of nested dicts by their joined names."""
    if not isinstance(values, dict):
        return {prefix: values}
    flat: dict = {}
    for name, value in values.items():
        flat |= _flat(value, f"{prefix}.{name}" if prefix else name)
    return flat
