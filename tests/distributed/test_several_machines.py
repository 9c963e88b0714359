"""Two processes on JAX train as one: the example, on loopback, against one process."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "train_on_several_machines.py"


def start(*arguments):
    return subprocess.Popen(
        [sys.executable, str(EXAMPLE), "--steps", "4", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""},
    )


def free_port():
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return listener.getsockname()[1]


@pytest.mark.slow
def test_two_processes_train_the_weights_of_one(tmp_path):
    pytest.importorskip("jax", reason="needs jax: pip install '.[jax]'")
    from keras_transformer.models.weight_files import read_weights

    paths = [tmp_path / f"{name}.weights.h5" for name in ("one", "two")]
    address = f"localhost:{free_port()}"
    processes = [start("--weights", paths[0])]
    for number in (0, 1):
        more = ("--coordinator", address, "--processes", 2, "--id", number)
        processes.append(start("--weights", paths[1], *more))
    for process in processes:
        _, errors = process.communicate(timeout=900)
        assert process.returncode == 0, errors[-3000:]
    one, two = map(read_weights, paths)
    assert one.keys() == two.keys()
    for name, value in one.items():
        np.testing.assert_allclose(two[name], value, atol=1e-6, err_msg=name)
