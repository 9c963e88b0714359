"""One file, three backends: the same logits, the same training, the same translations.

Each backend writes a model and each loads it in a process that has never seen it.
"""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from tests.closeness import assert_all_close, assert_close
from tests.tiny_translator import tiny_translator

BACKENDS = [name for name in ("tensorflow", "jax", "torch") if importlib.util.find_spec(name)]
pytestmark = [
    pytest.mark.slow,  # Processes import a backend and compile searches.
    pytest.mark.skipif(
        len(BACKENDS) < 2, reason="needs a second backend: pip install '.[jax]' or '.[torch]'"
    ),
]
EOS = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with what each backend has written and read, after the others had written."""
    folder = tmp_path_factory.mktemp("backends")
    tiny_translator().save(folder / "translator")
    for command, *writers in (["write"], ["read", *BACKENDS]):
        for backend in BACKENDS:
            environment = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
            environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
            program = pathlib.Path(__file__).with_name("process.py")
            words = [sys.executable, "-W", "error:::keras_transformer", program, command, folder]
            process = subprocess.run(
                [*words, *writers], env=environment, capture_output=True, text=True
            )
            assert process.returncode == 0, process.stderr[-3000:]
    return folder


@pytest.fixture
def results(folder):
    return {backend: np.load(folder / backend / "read.npz") for backend in BACKENDS}


@pytest.fixture
def translated(folder):
    texts = {backend: (folder / backend / "translated.json").read_text() for backend in BACKENDS}
    return {backend: json.loads(text) for backend, text in texts.items()}


@pytest.mark.parametrize("writer", BACKENDS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_keras_file_has_the_same_logits_wherever_it_is_loaded(folder, results, backend, writer):
    for model, written in np.load(folder / writer / "written.npz").items():
        assert written.shape[-1] == 20 and np.ptp(written) > 1.0
        assert_close(results[backend][f"{writer}.{model}"], written)
    # A loaded transformer decodes.
    assert_close(results[backend][f"{writer}.first_step"], results[writer][f"{writer}.first_step"])


@pytest.mark.parametrize("backend", BACKENDS)
def test_steps_of_fit_have_the_same_losses_and_end_in_the_same_weights(results, backend):
    first, found = results[BACKENDS[0]], results[backend]
    assert len(found["losses"]) == 10
    assert found["losses"][-1] < 0.95 * found["losses"][0]
    assert_close(found["losses"], first["losses"], sum_length=10 * 1024)
    names = [name for name in first if name.startswith("trained.")]
    assert len(names) == 1 + 12 + 2 * 18
    weights = ({name: one[name] for name in names} for one in (found, first))
    assert_all_close(*weights, sum_length=10 * 1024)


@pytest.mark.parametrize("search", ["greedy", "beam"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_model_directory_has_the_same_translations_and_scores(translated, backend, search):
    found, expected = (
        [answer for answers in translated[name][search] for answer in answers]
        for name in (backend, BACKENDS[0])
    )
    assert [one["tokens"] for one in found] == [one["tokens"] for one in expected]
    assert len({tuple(one["tokens"]) for one in found}) > 3
    scores = [[one["score"] for one in answers] for answers in (found, expected)]
    assert_close(*scores, scale=1.0)
    assert_close(translated[backend]["scores"], translated[BACKENDS[0]]["scores"], scale=1.0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_samples_follow_the_seed_and_are_whole(translated, backend):
    assert translated[backend]["samples"] == translated[backend]["samples_again"]
    samples = [one["tokens"] for answers in translated[backend]["samples"] for one in answers]
    assert len(samples) == 15 and len(set(map(tuple, samples))) > 5
    for tokens in samples:
        assert all(0 <= token < 320 for token in tokens) and EOS not in tokens[:-1]
