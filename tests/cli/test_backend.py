"""The cores of a CPU are shared out among streams, and each operation has those of one."""

import os

import keras
import pytest

from keras_transformer.cli.arguments import load_backend_in_streams


@pytest.fixture
def threads(monkeypatch):
    """What TensorFlow is told on a machine of eight cores."""
    told = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8), raising=False)
    monkeypatch.delenv("TF_NUM_INTRAOP_THREADS", raising=False)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        name = "set_intra_op_parallelism_threads"
        monkeypatch.setattr(tf.config.threading, name, told.append)
        monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: [])
    return told


@pytest.mark.tensorflow_only("the threads are those of its operations")
@pytest.mark.parametrize("asked, streams, cores", [(None, 8, 1), (1, 1, 8), (3, 3, 2), (20, 20, 1)])
def test_streams_share_the_cores(threads, asked, streams, cores):
    assert load_backend_in_streams(asked) == streams
    assert threads == [cores]


@pytest.mark.tensorflow_only("the threads are those of its operations")
@pytest.mark.parametrize("asked, streams, cores", [(None, 2, 4), (4, 4, 2)])
def test_the_default_has_a_maximum(threads, asked, streams, cores):
    assert load_backend_in_streams(asked, most=2) == streams
    assert threads == [cores]


@pytest.mark.tensorflow_only("the setting is its own")
def test_a_setting_of_tensorflow_wins(threads, monkeypatch):
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "2")
    assert load_backend_in_streams(None) == 8
    assert threads == []


@pytest.mark.tensorflow_only("elsewhere no devices are asked for")
def test_a_gpu_has_one_stream(threads, monkeypatch):
    import tensorflow as tf

    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: ["a GPU"])
    assert [load_backend_in_streams(asked) for asked in (None, 2)] == [1, 2]
    assert threads == []


def test_other_backends_have_one_stream(threads, monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "torch")
    assert [load_backend_in_streams(asked) for asked in (None, 2)] == [1, 2]
    assert threads == []
