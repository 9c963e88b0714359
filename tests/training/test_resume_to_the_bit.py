"""A training that is killed again and again ends with the very weights of one that was not."""

import os
import random
import resource
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
TOKENIZERS = {
    "subwords": "tokenizer='subword', vocab_size=None, streams=2",
    "bpe_dropout": "tokenizer='bpe', vocab_size=270, bpe_dropout=0.3",
    "mixed": "tokenizer='bpe', vocab_size=270",
    "mixed_bpe_dropout": "tokenizer='bpe', vocab_size=270, bpe_dropout=0.3",
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
    recipe=dict(tokens_per_batch=120, warmup_steps=20, average_checkpoints=3, ema_momentum=0.9),
    max_steps={NUM_STEPS}, evaluate_every=15, checkpoint_every=4, OPTIONS
)

def progress(step, total, note):
    print("step", step, flush=True)

pairs = corpus
if "TOKENIZER".startswith("mixed"):
    corpora = {{"all": corpus, "few": PairsCorpus(list(corpus)[:17])}}
    pairs = MixedCorpus(corpora, {{"all": 2, "few": 1}}, {{"few": "<few>"}})
result = train(sys.argv[1], pairs, corpus, settings, report=lambda line: None, progress=progress)
print("trained", result.steps, flush=True)
"""


def start(directory, tokenizer="subwords", **options):
    program = PROGRAM.replace("OPTIONS", TOKENIZERS[tokenizer]).replace("TOKENIZER", tokenizer)
    return subprocess.Popen(
        [sys.executable, "-c", program, str(directory)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""},
        **options,
    )


def finish(directory, tokenizer="subwords"):
    process = start(directory, tokenizer)
    output, errors = process.communicate(timeout=600)
    assert f"trained {NUM_STEPS}" in output, errors[-2000:]
    # The state has the moving average of the weights.
    with np.load(directory / "checkpoints" / "state.npz") as file:
        state = {name: file[name] for name in file if name.startswith("optimizer/")}
    weights = read_weights(directory / "model.weights.h5") | state
    return weights, (directory / "history.csv").read_text()


def kill_after(directory, num_steps, delay, tokenizer="subwords"):
    """Kills a run some steps after it began, or resumed; returns the step that it was at."""
    process = start(directory, tokenizer)
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


def assert_same(found, expected):
    weights, history = found
    assert weights.keys() == expected[0].keys()
    for name, value in expected[0].items():
        np.testing.assert_array_equal(weights[name], value, err_msg=name)
    assert without_times(found[1]) == without_times(expected[1])


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    return finish(tmp_path_factory.mktemp("whole") / "model")


@pytest.mark.slow
def test_twenty_kills_change_no_bit(tmp_path, uninterrupted):
    generator = random.Random(1)
    reached = [
        kill_after(tmp_path / "model", generator.randint(1, 16), generator.uniform(0, 0.06))
        for _ in range(20)
    ]
    assert max(reached) > 40 and reached[-1] < NUM_STEPS
    assert_same(finish(tmp_path / "model"), uninterrupted)


@pytest.mark.slow
@pytest.mark.parametrize("data", ["bpe_dropout", "mixed", "mixed_bpe_dropout"])
def test_kills_change_no_bit_of_what_each_epoch_draws(tmp_path, data):
    """Pairs of corpora, and the merges that are dropped, are the same in every process."""
    whole = finish(tmp_path / "whole", data)
    reached = [kill_after(tmp_path / "model", 30, 0.02 * n, data) for n in range(4)]
    assert 60 < reached[-1] < NUM_STEPS
    assert_same(finish(tmp_path / "model", data), whole)


@pytest.mark.slow
def test_a_full_disk_changes_no_bit(tmp_path, uninterrupted):
    """Files may not grow beyond 30 kB for a while, as on a disk that has become full."""
    directory = tmp_path / "model"
    kill_after(directory, 30, 0.0)
    before = {path: path.read_bytes() for path in directory.rglob("*state*")}

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))

    process = start(directory, preexec_fn=limit)
    _, errors = process.communicate(timeout=600)
    assert process.returncode not in (0, None) and "File too large" in errors
    assert {path: path.read_bytes() for path in directory.rglob("*state*")} == before
    assert_same(finish(directory), uninterrupted)
