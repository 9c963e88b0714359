"""Two devices train what one device trains: losses, weights, clipping; only dropout differs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.closeness import assert_close

pytest.importorskip("tensorflow")

ROOT = Path(__file__).parents[2]


def measure(what):
    environment = {
        **os.environ,
        "KERAS_BACKEND": "tensorflow",
        "CUDA_VISIBLE_DEVICES": "",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
    }
    process = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "two_devices.py"), what],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    if process.returncode:
        pytest.fail(f"two_devices.py failed:\n{process.stderr[-3000:]}")
    return json.loads(process.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def few():
    return measure("few")


@pytest.fixture(scope="module")
def measured():
    return measure("all")


@pytest.mark.parametrize("epoch", range(2), ids=["even", "uneven"])
def test_losses_and_sgd_weights_equal_one_device(few, epoch):
    assert few["replicas"] == 2
    differences = few["sgd"][epoch]
    assert differences["step"] > 1e-3
    assert_close(differences["weights"], 0.0, sum_length=64, scale=1.0)
    assert_close(differences["token_loss"], 0.0, scale=1.0)
    assert_close(differences["loss"], 0.0, scale=1.0)


def test_replicas_draw_different_dropout_masks(few):
    for share in few["dropout"]:
        assert 0.4 < share < 0.6


def test_jit_compile_on_several_replicas_says_what_to_do(few):
    assert "Use jit_compile=False" in few["jit_error"]
    assert "2 replicas" in few["jit_error"]


def test_more_devices_than_there_are_is_one_clear_line(few):
    assert few["too_many"] == "Asked for 4 devices, but this machine has no GPU."


@pytest.mark.parametrize("name, devices", [
    ("another_number", "CPU:0, CPU:1, CPU:2"), ("other_devices", "CPU:1, CPU:2"),
])  # fmt: skip
def test_other_devices_in_one_process_are_refused(few, name, devices):
    assert "has used a strategy of the devices CPU:0, CPU:1, and can" in few[name]
    assert few[name].endswith(f"Received: a strategy of {devices}")


@pytest.mark.slow
@pytest.mark.parametrize(
    "epoch", range(4), ids=["even", "uneven", "nothing_on_the_second", "uneven_last_batch"]
)
def test_losses_and_sgd_weights_of_every_batch_equal_one_device(measured, epoch):
    differences = measured["sgd"][epoch]
    assert_close(differences["weights"], 0.0, sum_length=64, scale=1.0)
    assert_close(differences["token_loss"], 0.0, scale=1.0)
    if epoch < 3:
        # Keras weighs the loss that it displays by rows, which is not exact with uneven rows.
        assert_close(differences["loss"], 0.0, scale=1.0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["losses", "r_drop"])
@pytest.mark.parametrize("epoch", range(3), ids=["even", "uneven", "nothing_on_the_second"])
def test_the_model_of_losses_equals_one_device(measured, epoch, name):
    assert_close(measured[name][epoch]["weights"], 0.0, sum_length=64, scale=1.0)
    assert_close(measured[name][epoch]["loss"], 0.0, scale=1.0)


@pytest.mark.slow
def test_without_weights_the_loss_is_the_mean_of_both_devices(measured):
    assert measured["unweighted"][0]["step"] > 1e-3
    assert_close(measured["unweighted"][0]["weights"], 0.0, sum_length=64, scale=1.0)
    assert_close(measured["unweighted"][0]["loss"], 0.0, scale=1.0)


@pytest.mark.slow
@pytest.mark.parametrize("epoch", range(2), ids=["even", "uneven"])
def test_mixed_precision_equals_one_device_up_to_its_rounding(measured, epoch):
    differences = measured["mixed"][epoch]
    assert differences["step"] > 5e-3
    # A gradient in two parts is rounded twice, to 8 bits.
    assert differences["weights"] < 0.1 * differences["step"]
    assert differences["token_loss"] < 5e-3


@pytest.mark.slow
def test_clipping_is_of_the_whole_gradient(measured):
    assert_close(measured["clipped"][0]["weights"], 0.0, sum_length=64, scale=1.0)


@pytest.mark.slow
def test_the_moving_average_is_that_of_one_device(measured):
    assert measured["averaged"][0]["step"] > 1e-3
    assert_close(measured["averaged"][0]["weights"], 0.0, sum_length=64, scale=1.0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["clipped", "in_parts"])
def test_the_gradient_norm_is_of_the_whole_gradient(measured, name):
    one, two = measured[name][0]["gradient_norms"]
    assert one > 0.05  # Before the clipping.
    assert_close(two, one)


@pytest.mark.slow
def test_steps_in_parts_on_two_devices_equal_whole_ones_on_one(measured):
    assert_close(measured["in_parts"][0]["weights"], 0.0, sum_length=64, scale=1.0)
    assert_close(measured["in_parts"][0]["token_loss"], 0.0, scale=1.0)


@pytest.mark.slow
def test_replicas_drop_differently_in_fit(measured):
    # Independent halves: a quarter, a half, a quarter. Equal masks would leave none to one alone.
    neither, one, both = measured["kept_in_fit"]
    assert 200 < neither < 300 and 430 < one < 570 and 200 < both < 300


@pytest.mark.slow
def test_recomputed_blocks_drop_what_they_dropped(measured):
    assert_close(measured["recomputed"], 0.0, scale=1.0)


@pytest.mark.slow
def test_train_on_two_devices_equals_one_and_resumes(measured):
    one, two = (np.array(rows, "float64") for rows in measured["train"]["evaluations"])
    losses, bleu = 0, 1
    assert_close(one[:, losses], two[:, losses])
    np.testing.assert_allclose(one[:, bleu], two[:, bleu], atol=1e-3)
    assert len(one) == 2 and np.isfinite(one).all()
    assert measured["train"]["resumed_steps"] == 5
