"""Memory is given back: no graph of a model outlives the model."""

import gc
import os
import subprocess
import sys
from pathlib import Path

import keras
import pytest

from keras_transformer.data import PairsCorpus
from keras_transformer.decoding import GreedySearch
from keras_transformer.models import TrainingRecipe, Transformer
from keras_transformer.training import LossModel, TrainingSettings, compile_model, train
from tests.composition.answers import tiny_transformer
from tests.composition.test_export import IDS
from tests.tiny_translator import sentence, tiny_translator

pytestmark = pytest.mark.tensorflow_only("TensorFlow's graphs")


def build(folder):
    Transformer.from_preset("tiny", vocab_size=100)


def translate(folder):
    translator = tiny_translator()
    translator.translate([sentence(3)], search=GreedySearch())
    translator.score([sentence(3)], [sentence(3)])


def fit(folder):
    import numpy as np

    inputs = {"source": IDS, "target": IDS}
    weights = np.full(IDS.shape, 0.1, "float32")
    recipe = TrainingRecipe(warmup_steps=2)
    transformer = tiny_transformer()
    compile_model(transformer, recipe).train_on_batch(inputs, IDS, weights)
    loss_model = compile_model(LossModel(transformer), recipe)
    loss_model.train_on_batch(inputs, IDS, weights)


def train_a_directory(folder):
    corpus = PairsCorpus([("a b", "b a"), ("b", "b")])
    recipe = {"tokens_per_batch": 64}
    settings = TrainingSettings(preset="tiny", tokenizer="subword", max_steps=1, recipe=recipe)
    train(folder / f"model_{len(os.listdir(folder))}", corpus, corpus, settings)


def num_graphs():
    import tensorflow as tf

    keras.backend.clear_session()
    gc.collect()
    # `isinstance` would ask lazy modules for their class.
    return sum(issubclass(type(one), tf.Graph) for one in gc.get_objects())


@pytest.mark.slow
@pytest.mark.parametrize("use", [fit, build, translate, train_a_directory])
def test_no_graph_outlives_its_model(use, tmp_path):
    counts = []
    for _ in range(3):
        use(tmp_path)
        counts.append(num_graphs())
    # What all models share is made by the first.
    assert counts[2] <= counts[1], counts


_GROWTH = """
import gc, sys, tempfile
from pathlib import Path
import keras, psutil
from tests.system import test_memory

use, times = getattr(test_memory, sys.argv[1]), int(sys.argv[2])
folder, sizes = Path(tempfile.mkdtemp()), []
for _ in range(times):
    use(folder)
    keras.backend.clear_session()
    gc.collect()
    sizes.append(psutil.Process().memory_info().rss / 2**20)
print(*sizes)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("use", "times"), [("build", 20), ("translate", 20), ("train_a_directory", 10)]
)
def test_a_process_does_not_grow(use, times):
    pytest.importorskip("psutil", reason="needs psutil, which comes with tensorflow-datasets")
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", _GROWTH, use, str(times)]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    result = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    sizes = [float(size) for size in result.stdout.splitlines()[-1].split()]
    assert max(sizes[-3:]) - sizes[2] < 20, sizes  # MB
