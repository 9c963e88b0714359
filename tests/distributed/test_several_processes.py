"""Several processes of `train` on JAX, on loopback, train the model of one process."""

import csv
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from keras_transformer.quickstart import number_corpus
from tests.closeness import assert_all_close
from tests.training.test_processes import free_address

ROOT = Path(__file__).parents[2]
# Adam divides by the size of tiny gradients: 1e-3 keeps rounding from becoming a sign.
OPTIONS = """--preset tiny --num-encoder-layers 1 --num-decoder-layers 1 --d-model 32 --num-heads 2
--intermediate-dim 64 --vocab-size 400 --tokens-per-batch 1024 --epsilon 0.001""".split()
SECONDS = 600

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """The options of a corpus."""
    pytest.importorskip("jax", reason="needs jax: pip install '.[jax]'")
    folder = tmp_path_factory.mktemp("texts")
    train, valid, _ = number_corpus(num_train=600, num_valid=20, num_test=1)
    for name, pairs in (("train", train), ("valid", valid)):
        lines = "".join(f"{source}\t{target}\n" for source, target in pairs)
        (folder / f"{name}.tsv").write_text(lines, "utf-8")
    return ["--tsv", str(folder / "train.tsv"), "--valid-tsv", str(folder / "valid.tsv")]


def start(texts, output, number, *options, environments=None, several=None, model=OPTIONS):
    """Starts `number` processes; `several[id]` are further options of one."""
    address, processes = free_address(), []
    for process in range(number):
        command = [sys.executable, "-m", "keras_transformer.cli", "train", "--output", str(output)]
        command += [*texts, *model, *map(str, options)]
        if number > 1 and environments is None:
            command += ["--coordinator", address, "--processes", str(number)]
            command += ["--process-id", str(process)]
        command += several.get(process, []) if several else []
        environment = {"PYTHONPATH": str(ROOT), "KERAS_BACKEND": "jax", "CUDA_VISIBLE_DEVICES": ""}
        environment["TF_CPP_MIN_LOG_LEVEL"] = "3"  # as the commands set it by default
        environment |= environments(process) if environments else {}
        pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
        processes.append(subprocess.Popen(command, env=os.environ | environment, **pipes))
    return processes


def finish(processes, statuses=None):
    """Returns what the processes wrote to standard error."""
    errors = [process.communicate(timeout=SECONDS)[1] for process in processes]
    found = [process.returncode for process in processes]
    assert found == (statuses or [0] * len(processes)), "\n".join(text[-2000:] for text in errors)
    return errors


def weights(output, step):
    from keras_transformer.models.weight_files import read_weights

    names = f"checkpoints/step-{step:08d}.weights.h5", "model.weights.h5"
    return [read_weights(output / name) for name in names]


def history(output):
    """The figures of the evaluations, without times."""
    with open(output / "history.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return [
        {n: float(v) for n, v in row.items() if v and n not in ("minutes", "tokens_per_second")}
        for row in rows
    ]


def check_equal(found, expected, step):
    for one, other in zip(weights(found, step), weights(expected, step), strict=True):
        assert_all_close(one, other)
    for row, of_one in zip(history(found), history(expected), strict=True):
        assert row.keys() == of_one.keys()
        for name, value in row.items():
            assert value == pytest.approx(of_one[name], rel=1e-4), name


@pytest.fixture(scope="module")
def one_process(texts, tmp_path_factory):
    """A function from options to the directory of a training in one process, of 50 steps."""
    trained = {}

    def train(*options):
        if options not in trained:
            trained[options] = tmp_path_factory.mktemp("one") / "model"
            finish(start(texts, trained[options], 1, *options))
        return trained[options]

    return train


ALL = "--max-steps 50 --evaluate-every 25 --checkpoint-every 10 --r-drop 1 --clip-norm 0.5".split()
ALL += ["--ema-momentum", "0.9"]


@pytest.mark.parametrize("number", [2, 4])
def test_losses_weights_and_scores_are_those_of_one_process(number, texts, one_process, tmp_path):
    first, *others = finish(start(texts, tmp_path / "model", number, *ALL))
    check_equal(tmp_path / "model", one_process(*ALL), step=50)
    assert f"on {number} CPUs" in first and "Final weights:" in first
    assert not any(text.strip() for text in others)


def test_an_adaptation_ends_after_the_same_validation(texts, one_process, tmp_path):
    """With the row of step 0, a second validation set, and an end without a better score."""
    text = Path(texts[1]).read_text("utf-8").splitlines()[:30]
    for name, column in (("source", 0), ("target", 1)):
        lines = [line.split("\t")[column] + "\n" for line in text]
        (tmp_path / name).write_text("".join(lines), "utf-8")
    options = ["--start-from", one_process(*ALL), "--tokens-per-batch", 1024, "--epsilon", 0.001]
    options += ["--also-valid", f"old={tmp_path / 'source'},{tmp_path / 'target'}"]
    options += "--max-steps 30 --evaluate-every 3 --patience 2 --peak-learning-rate 1e-12".split()
    for number in (1, 2):
        finish(start(texts, tmp_path / f"model-{number}", number, *options, model=[]))
    rows = history(tmp_path / "model-2")
    assert rows[0]["step"] == 0 and rows[-1]["step"] < 30 and "old_bleu" in rows[-1]
    check_equal(tmp_path / "model-2", tmp_path / "model-1", step=int(rows[-1]["step"]))


def test_a_cluster_that_jax_knows_needs_no_addresses(texts, one_process, tmp_path):
    def slurm(process):
        values = {"NTASKS": 2, "PROCID": process, "LOCALID": process, "STEP_NUM_NODES": 1}
        values |= {"JOB_ID": os.getpid(), "STEP_NODELIST": "localhost"}
        return {f"SLURM_{name}": str(value) for name, value in values.items()}

    options = "--max-steps 4 --packed-width 0 --coordinator auto".split()
    finish(start(texts, tmp_path / "model", 2, *options, environments=slurm))
    check_equal(tmp_path / "model", one_process(*options[:-2]), step=4)


@pytest.mark.parametrize("parallel", [1, 2])
def test_devices_of_one_process_train_as_one(parallel, texts, one_process, tmp_path):
    devices = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    options = [*ALL, "--gpus", 4, "--model-parallel", parallel]
    finish(start(texts, tmp_path / "model", 1, *options, environments=lambda _: devices))
    check_equal(tmp_path / "model", one_process(*ALL), step=50)


def steps_done(output):
    names = [path.name for path in output.glob("checkpoints/step-*")]
    return max((int(name[5:13]) for name in names), default=0)


def test_killed_processes_change_nothing(texts, one_process, tmp_path):
    options = "--max-steps 150 --evaluate-every 50 --checkpoint-every 2 --bleu-every 3".split()
    output, generator, kills = tmp_path / "model", random.Random(1), 0
    while kills < 10:
        number = generator.choice([1, 2, 4])
        processes = start(texts, output, number, *options)
        victim = generator.choice(processes)
        if generator.random() < 0.3:
            time.sleep(generator.uniform(2, 10))
        else:
            until = steps_done(output) + generator.randrange(12)
            while steps_done(output) < until and victim.poll() is None:
                time.sleep(0.02)
        assert victim.poll() is None  # otherwise allow more steps
        victim.kill()
        killed, kills = time.monotonic(), kills + 1
        errors = [process.communicate(timeout=SECONDS)[1] for process in processes]
        assert time.monotonic() - killed < 30
        assert all(process.returncode for process in processes), errors
    finish(start(texts, output, 2, *options))
    # After 300 steps, rounding alone would have grown to 1e-3, with kills and without.
    check_equal(output, one_process(*options), step=150)


def test_a_signal_to_one_process_stops_all_after_the_same_step(texts, tmp_path):
    output, options = tmp_path / "model", ["--max-steps", 5000, "--checkpoint-every", 3]
    processes = start(texts, output, 2, *options)
    while not (output / "checkpoints" / "state.npz").exists():
        assert processes[0].poll() is None
        time.sleep(0.1)
    processes[1].send_signal(signal.SIGTERM)
    texts_of = finish(processes, [143, 143])
    assert len({text[text.index("interrupted after") :] for text in texts_of}) == 1


def test_processes_without_a_shared_disk_end_with_the_same_line(texts, tmp_path):
    several = {1: ["--output", "elsewhere"]}
    processes = start(texts, tmp_path / "model", 2, "--max-steps", 10, several=several)
    errors = finish(processes, [2, 2])
    assert all("which process 1 does not see" in text for text in errors), errors
    assert not (tmp_path / "model").exists()


def test_a_mistake_in_one_process_ends_all(texts, tmp_path):
    """With JAX's own message in the other, and within half a minute of the end of the first."""
    several = {1: ["--processes", "3"]}
    processes = start(texts, tmp_path / "model", 2, "--max-steps", 10, several=several)
    errors = [process.communicate(timeout=SECONDS)[1] for process in processes]
    assert "Process 0 was started for 2 processes" in errors[1], errors
    assert all(process.returncode for process in processes)
    assert not (tmp_path / "model").exists()
