"""Processes exchange values; one that ends takes the others with it."""

import os
import queue
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from keras_transformer.errors import UserError
from keras_transformer.training import ProcessGroup, process_group
from keras_transformer.training.processes import _address


def connected(number):
    """Returns the groups of `number` processes, here of one, to be used in threads."""
    pairs = {}
    with socket.create_server(("localhost", 0)) as listener:
        for other in range(1, number):
            end = socket.create_connection(listener.getsockname())
            pairs[other] = listener.accept()[0], end
    first = ProcessGroup(0, number, {other: pair[0] for other, pair in pairs.items()})
    others = [ProcessGroup(n, number, {0: pair[1]}) for n, pair in pairs.items()]
    return [first, *others]


def in_all(groups, function):
    """Returns the results, or the errors, of `function(group)`, called in a thread for each."""

    def call(group):
        try:
            return function(group)
        except UserError as error:
            return str(error)

    with ThreadPoolExecutor(len(groups)) as threads:
        results = list(threads.map(call, groups))
    close(*groups)
    return results


def close(*groups):
    for group in groups:
        group._is_finished = True  # the end of the sockets is no error
    for group in groups:
        group.close()


def test_a_single_process_is_a_group():
    group = process_group()
    assert (group.process_id, group.num_processes, group.is_first) == (0, 1, True)
    assert group.gather({"a": 1}) == [{"a": 1}]
    assert group.share(lambda items: [2 * item for item in items], (1, 2)) == [2, 4]


@pytest.mark.parametrize("number", [2, 3])
def test_every_process_gets_the_values_of_all(number):
    def exchange(group):
        return [group.gather([group.process_id, turn]) for turn in range(3)]

    expected = [[[process, turn] for process in range(number)] for turn in range(3)]
    assert in_all(connected(number), exchange) == [expected] * number


@pytest.mark.parametrize("num_items", [0, 1, 2, 7])
def test_shares_come_back_in_order(num_items):
    computed = []

    def double(items):
        computed.extend(items)
        return [2 * item for item in items]

    results = in_all(connected(3), lambda group: group.share(double, list(range(num_items))))
    assert results == [[2 * item for item in range(num_items)]] * 3
    assert sorted(computed) == list(range(num_items))


def test_a_function_that_writes_is_called_in_process_0_only():
    calls = []

    def write(*args):
        calls.append(args)
        return len(calls)

    assert in_all(connected(3), lambda group: group.in_first(write, "a", 1)) == [1, 1, 1]
    assert calls == [("a", 1)]


def test_processes_that_differ_are_told_so_by_name():
    def check(group):
        seed = 1 if group.process_id < 2 else 2
        group.check_equal({"version": "1.0", "settings": {"seed": seed, "gpus": None}})

    expected = (
        "Processes of one training must agree. Received: settings.seed=2 in process 2, 1 in "
        "process 0"
    )
    assert in_all(connected(3), check) == [expected] * 3


@pytest.mark.parametrize(
    "ended, end, reason",
    [
        (1, lambda group: close(group), "1 of 3 has ended: it was killed"),
        (0, lambda group: close(group), "0 of 3 has ended: it was killed"),
        (2, lambda group: group.leave(ValueError("no\nroom")), "2 of 3 has ended: no room."),
    ],
)
def test_a_process_that_ends_takes_the_others_with_it(ended, end, reason, monkeypatch, capfd):
    statuses = queue.SimpleQueue()
    monkeypatch.setattr(os, "_exit", statuses.put)
    groups = connected(3)
    end(groups[ended])
    groups[ended]._is_finished = True
    assert [statuses.get(timeout=10) for _ in range(2)] == [1, 1]
    lines = [line for line in capfd.readouterr().err.splitlines() if line]
    left = {n for n in range(3) if n != ended}
    assert {number for number in left for line in lines if f"process {number} ends" in line} == left
    assert len(lines) == 2 and all(line.startswith(f"Process {reason}") for line in lines)


def test_all_may_end_when_all_have_finished(monkeypatch):
    statuses = queue.SimpleQueue()
    monkeypatch.setattr(os, "_exit", statuses.put)
    groups = connected(3)
    with ThreadPoolExecutor(3) as threads:
        list(threads.map(lambda group: group.finish(), groups))
    close(*groups)
    with pytest.raises(queue.Empty):
        statuses.get(timeout=0.2)


@pytest.mark.parametrize("address", ["host", "host:0", "host:99999", ":123", "host:x"])
def test_an_address_has_a_host_and_a_port(address):
    with pytest.raises(UserError, match="The coordinator is HOST:PORT"):
        _address(address)
