"""Memory is given back: a process that trains and drops models does not grow."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from keras_transformer.data import PairsCorpus
from keras_transformer.training import TrainingSettings, train


def train_a_directory(folder):
    corpus = PairsCorpus([("a b", "b a"), ("b", "b")])
    recipe = {"tokens_per_batch": 64}
    settings = TrainingSettings(preset="tiny", tokenizer="subword", max_steps=1, recipe=recipe)
    train(folder / f"model_{len(os.listdir(folder))}", corpus, corpus, settings)


_GROWTH = """
import gc, tempfile
from pathlib import Path
import keras, psutil
from tests.system.test_memory import train_a_directory

folder, sizes = Path(tempfile.mkdtemp()), []
for _ in range(10):
    train_a_directory(folder)
    keras.backend.clear_session()
    gc.collect()
    sizes.append(psutil.Process().memory_info().rss / 2**20)
print(*sizes)
"""


@pytest.mark.slow
@pytest.mark.tensorflow_only("TensorFlow's graphs")
def test_a_process_does_not_grow():
    pytest.importorskip("psutil", reason="needs psutil, which comes with tensorflow-datasets")
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", _GROWTH]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    result = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    sizes = [float(size) for size in result.stdout.splitlines()[-1].split()]
    assert max(sizes[-3:]) - sizes[2] < 20, sizes  # MB
