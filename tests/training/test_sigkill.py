"""A training killed with SIGKILL goes on from its last checkpoint when it is started again."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.tensorflow_only("`train` reads its data with tf.data")

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
from keras_transformer.data import PairsCorpus
from keras_transformer.training import TrainingSettings, train

corpus = PairsCorpus([("a " * (n % 9 + 1), "b " * (n % 7 + 1)) for n in range(40)])
small = dict(num_encoder_layers=1, num_decoder_layers=1, d_model=16, intermediate_dim=32)
settings = TrainingSettings(
    preset="tiny", model=small, recipe={"tokens_per_batch": 64}, tokenizer="subword",
    vocab_size=None, max_steps=int(sys.argv[2]), evaluate_every=100, checkpoint_every=2,
    bleu_every=0,
)
print("steps", train(sys.argv[1], corpus, corpus, settings, report=print).steps)
"""


def start(directory, max_steps):
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(directory), str(max_steps)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""},
    )


@pytest.mark.slow
def test_killed_and_started_again(tmp_path):
    state = tmp_path / "checkpoints" / "state.npz"
    process = start(tmp_path, 100_000)
    deadline = time.monotonic() + 300
    while not state.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.33)  # anywhere in a step, or in the writing of a checkpoint
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert state.exists()

    steps = max(int(path.name[5:13]) for path in state.parent.glob("step-*"))
    output, _ = start(tmp_path, steps + 3).communicate(timeout=300)
    assert "Resuming after step" in output
    assert f"steps {steps + 3}" in output
    assert (tmp_path / "model.weights.h5").is_file()
