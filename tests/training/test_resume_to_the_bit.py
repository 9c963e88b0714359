"""A training that is killed again and again ends with the very weights of one that was not."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from keras_transformer.models.weight_files import read_weights

pytestmark = pytest.mark.tensorflow_only("`train` reads its data with tf.data")

ROOT = Path(__file__).parents[2]
NUM_STEPS = 200
# One corpus whose batches are cut in two, and a mixture in packed rows that each epoch encodes.
OPTIONS = {
    "one": "tokenizer='subword', vocab_size=None, streams=2",
    "mixed": "tokenizer='bpe', vocab_size=270, bpe_dropout=0.3, packed_width=32",
}
# Dropout, shuffled batches of several shapes, averages, and the best weights by BLEU.
PROGRAM = f"""
import sys
from keras_transformer.data import MixedCorpus, PairsCorpus
from keras_transformer.training import TrainingSettings, train

corpus = PairsCorpus(
    [(" ".join("abcdef"[n * k % 6] for k in range(n % 9 + 1)), "b " * (n % 7 + 1))
     for n in range(120)]
)
small = dict(num_encoder_layers=1, num_decoder_layers=1, d_model=16, intermediate_dim=32)
settings = TrainingSettings(
    preset="tiny", model=small, deterministic=True,
    recipe=dict(tokens_per_batch=120, warmup_steps=20, average_checkpoints=3, ema_momentum=0.9,
                optimizer="muon"),
    max_steps={NUM_STEPS}, evaluate_every=15, checkpoint_every=4, OPTIONS
)

def progress(step, total, note):
    print("step", step, flush=True)

pairs = corpus
if "DATA" == "mixed":
    corpora = {{"all": corpus, "few": PairsCorpus(list(corpus)[:17])}}
    pairs = MixedCorpus(corpora, {{"all": 2, "few": 1}}, {{"few": "<few>"}})
result = train(sys.argv[1], pairs, corpus, settings, report=lambda line: None, progress=progress)
print("trained", result.steps, flush=True)
"""


def start(directory, data):
    program = PROGRAM.replace("OPTIONS", OPTIONS[data]).replace("DATA", data)
    return subprocess.Popen(
        [sys.executable, "-c", program, str(directory)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""},
    )


def finish(directory, data):
    process = start(directory, data)
    output, errors = process.communicate(timeout=600)
    assert f"trained {NUM_STEPS}" in output, errors[-2000:]
    # The state has the moving average of the weights.
    with np.load(directory / "checkpoints" / "state.npz") as file:
        state = {name: file[name] for name in file if name.startswith("optimizer/")}
    weights = read_weights(directory / "model.weights.h5") | state
    return weights, (directory / "history.csv").read_text()


def kill_after(directory, num_steps, delay, data):
    """Kills a run some steps after it began, or resumed; returns the step that it was at."""
    process = start(directory, data)
    step = 0
    for _, line in zip(range(num_steps), process.stdout, strict=False):
        step = int(line.split()[-1])
    time.sleep(delay)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return step


def without_times(history):
    """The columns of a history that are not of the clock."""
    header, *rows = [line.split(",") for line in history.splitlines()]
    kept = [header.index(name) for name in header if name not in ("minutes", "tokens_per_second")]
    return [[row[index] for index in kept] for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize("data", OPTIONS)
def test_kills_change_no_bit(tmp_path, data):
    """Nor do they change which pairs an epoch draws, and which merges it drops."""
    generator = random.Random(1)
    reached = [
        kill_after(tmp_path / "model", generator.randint(1, 20), generator.uniform(0, 0.06), data)
        for _ in range(12)
    ]
    assert max(reached) > 40 and reached[-1] < NUM_STEPS
    weights, history = finish(tmp_path / "model", data)
    expected_weights, expected_history = finish(tmp_path / "whole", data)
    assert weights.keys() == expected_weights.keys()
    for name, value in expected_weights.items():
        np.testing.assert_array_equal(weights[name], value, err_msg=name)
    assert without_times(history) == without_times(expected_history)
