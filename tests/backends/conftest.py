"""One process for each backend does the work of all tests of this folder."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

BACKENDS = ("tensorflow", "jax", "torch")
PROGRAM = pathlib.Path(__file__).with_name("process.py")


class Backends:
    """The processes of the backends that are installed, and what each of them left.

    Attributes:
        names: Backends, the first being the one whose models are trained and translate.
        written: Dict of backends to the logits of the models that they wrote.
        results: Dict of backends to what they read, trained and translated.
    """

    def __init__(self, folder, names):
        self.names = names
        processes = {}
        try:
            for name in self.names:
                processes[name] = _start(name, folder)
                # One after the other: they share the cores, and the first writes the translator.
                _expect(processes[name].stdout.readline() == "written\n", name, folder)
            for name, process in processes.items():
                process.communicate(" ".join(self.names) + "\n")
                _expect(process.returncode == 0, name, folder)
        finally:
            for process in processes.values():
                process.kill()
        self.written = {
            name: {path.stem: np.load(path) for path in (folder / name).glob("*.npy")}
            for name in self.names
        }
        self.results = {
            name: {
                **np.load(folder / name / "results.npz"),
                **json.loads((folder / name / "results.json").read_text()),
            }
            for name in self.names
        }


def _start(name, folder):
    environment = {**os.environ, "KERAS_BACKEND": name, "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    with open(folder / f"{name}.log", "w") as log:
        return subprocess.Popen(
            [sys.executable, "-W", "error:::keras_transformer", PROGRAM, folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
        )


def _expect(condition, name, folder):
    if not condition:
        raise RuntimeError(f"{name} failed:\n" + (folder / f"{name}.log").read_text()[-3000:])


@pytest.fixture(scope="session")
def backends(tmp_path_factory):
    names = [name for name in BACKENDS if importlib.util.find_spec(name)]
    return Backends(tmp_path_factory.mktemp("backends"), names)


def _each_backend(request, backends):
    if request.param not in backends.names:
        pytest.skip(f"{request.param} is not installed")
    return request.param


backend = pytest.fixture(_each_backend, params=BACKENDS, name="backend")
writer = pytest.fixture(_each_backend, params=BACKENDS, name="writer")
