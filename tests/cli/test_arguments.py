"""The search that the command line asks for, and the cores that it shares out among streams."""

import argparse
import os

import keras
import pytest

from keras_transformer.cli.arguments import choose_search, load_backend_in_streams
from keras_transformer.decoding import (
    BeamSearch,
    GreedySearch,
    MinimumLength,
    NoRepeatNgrams,
    RepetitionPenalty,
    Sampling,
    SuppressTokens,
)


def options(**given):
    return argparse.Namespace(**{"beam_size": None, "length_penalty": None, "n_best": None} | given)


def test_without_options_the_search_of_the_model_is_used():
    search = GreedySearch()
    assert choose_search(options(), search) is search


def test_options_change_the_search_of_the_model_and_keep_the_rest_of_it():
    default = BeamSearch(beam_size=5, length_penalty=1.0, length_normalization="length")
    assert choose_search(options(beam_size=3), default) == BeamSearch(
        beam_size=3, length_penalty=1.0, length_normalization="length"
    )
    assert choose_search(options(patience=1.5), BeamSearch()) == BeamSearch(patience=1.5)


def test_a_beam_replaces_another_search_and_keeps_its_constraints():
    assert choose_search(options(beam_size=3), GreedySearch()) == BeamSearch(beam_size=3)
    constraints = (MinimumLength(2),)
    expected = BeamSearch(beam_size=3, constraints=constraints)
    assert choose_search(options(beam_size=3), GreedySearch(constraints=constraints)) == expected


def test_options_of_constraints_replace_those_of_their_kind_and_keep_the_search():
    nothing = {"min_length": None, "no_repeat_ngram": None, "repetition_penalty": None}
    nothing = argparse.Namespace(**nothing, suppress_unknown=False)
    search = Sampling(seed=4, constraints=[MinimumLength(2), SuppressTokens([7])])
    assert choose_search(nothing, search) is search
    asked = argparse.Namespace(
        min_length=5, no_repeat_ngram=3, repetition_penalty=1.5, suppress_unknown=True
    )
    assert choose_search(asked, search) == Sampling(
        seed=4,
        constraints=[
            SuppressTokens([7]), MinimumLength(5), NoRepeatNgrams(3), RepetitionPenalty(1.5),
            SuppressTokens([1]),
        ],
    )  # fmt: skip


@pytest.fixture
def threads(monkeypatch):
    """Records the threads that are set for TensorFlow on a machine of eight cores."""
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
@pytest.mark.parametrize(
    "asked, most, streams, cores",
    [(None, None, 8, 1), (1, None, 1, 8), (3, None, 3, 2), (20, None, 20, 1), (None, 2, 2, 4),
     (4, 2, 4, 2)],
)  # fmt: skip
def test_streams_share_the_cores(threads, asked, most, streams, cores):
    assert load_backend_in_streams(asked, most) == streams
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
