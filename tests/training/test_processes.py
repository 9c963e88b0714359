"""Processes exchange values, and end together."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from keras_transformer.errors import UserError
from keras_transformer.training import joined_processes

ROOT = Path(__file__).parents[2]
PROGRAM = """
import json, sys, time
from keras_transformer.errors import UserError
from keras_transformer.training import joined_processes, process_group

def double(items):
    computed.extend(items)
    return [2 * item for item in items]

computed = []
try:
    with joined_processes(sys.argv[1], 2, int(sys.argv[2])) as group:
        found = {"number": process_group().num_processes, "is_first": group.is_first}
        found["short"] = group.gather([group.process_id, None])
        found["long"] = group.gather("x" * (900 + group.process_id) + "\\u00e9")
        found["shares"] = [group.share(double, list(range(number))) for number in (0, 1, 7)]
        found["in_first"] = group.in_first(lambda: sys.argv[2])
        json.dump(found | {"computed": computed}, sys.stdout)
        sys.stdout.flush()
        group.check_equal({"settings": {"seed": group.process_id, "gpus": None}})
except UserError as error:
    sys.exit(str(error))
"""


def free_address():
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return f"localhost:{listener.getsockname()[1]}"


def test_two_processes_exchange_values_and_end_together():
    pytest.importorskip("jax", reason="needs jax: pip install '.[jax]'")
    environment = {**os.environ, "KERAS_BACKEND": "jax", "PYTHONPATH": str(ROOT)}
    environment["JAX_PLATFORMS"] = "cpu"
    address, pipe = free_address(), subprocess.PIPE
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, address, str(number)],
            env=environment,
            stdout=pipe,
            stderr=pipe,
            text=True,
        )
        for number in range(2)
    ]
    outputs = [process.communicate(timeout=300) for process in processes]
    assert [process.returncode for process in processes] == [1, 1], outputs
    found = [json.loads(output.splitlines()[-1]) for output, _ in outputs]  # JAX prints lines too.
    for number, of_process in enumerate(found):
        assert of_process["number"] == 2 and of_process["is_first"] == (number == 0)
        assert of_process["short"] == [[0, None], [1, None]]
        assert of_process["long"] == ["x" * 900 + "é", "x" * 901 + "é"]
        assert of_process["shares"] == [[], [0], [0, 2, 4, 6, 8, 10, 12]]
        assert of_process["in_first"] == "0"
    assert [one["computed"] for one in found] == [[0, 0, 2, 4, 6], [1, 3, 5]]
    rule = "Processes of one training must agree. Received: settings.seed=1 in process 1, 0 in"
    assert all(error.endswith(f"{rule} process 0\n") for _, error in outputs), outputs


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("host:0", 2, 0), "from 1 to 65535"),
        (("host:1", 2, 2), "from 0 and below it"),
        (("auto", 2, 0), "A cluster gives the numbers"),
        (("nowhere.invalid:1234", 2, 0), "Process 0 cannot listen at nowhere.invalid:1234"),
    ],
)
def test_wrong_arguments_are_one_line(arguments, message, monkeypatch):
    pytest.importorskip("jax", reason="needs jax: pip install '.[jax]'")
    monkeypatch.setattr("keras.backend.backend", lambda: "jax")
    with pytest.raises(UserError, match=message), joined_processes(*arguments):
        pass
