"""One file, three backends: the same logits, the same training, the same translations.

Each backend writes a model and each loads it in a process that has never seen it.
"""

import importlib.util

import numpy as np
import pytest

from tests.closeness import assert_all_close, assert_close

pytestmark = [
    pytest.mark.slow,  # three processes import a backend and compile searches
    pytest.mark.skipif(
        not any(map(importlib.util.find_spec, ("jax", "torch"))),
        reason="needs a second backend: pip install '.[jax]' or '.[torch]'",
    ),
]
EOS = 3


@pytest.fixture
def first(backends):
    """What the backend found whose results are the measure."""
    return backends.results[backends.names[0]]


@pytest.mark.parametrize("model", ["transformer", "functional"])
def test_a_keras_file_has_the_same_logits_wherever_it_is_loaded(backends, backend, writer, model):
    found = backends.results[backend][f"{writer}.{model}"]
    written = backends.written[writer][model]
    assert written.shape[-1] == 20 and np.ptp(written) > 1.0
    assert_close(found, written)


def test_a_loaded_transformer_decodes(backends, backend, writer):
    found = backends.results[backend][f"{writer}.first_step"]
    wanted = backends.results[writer][f"{writer}.first_step"]
    assert_close(found, wanted)


def test_steps_of_fit_have_the_same_losses_and_end_in_the_same_weights(backends, backend, first):
    results = backends.results[backend]
    assert len(results["losses"]) == 10
    assert results["losses"][-1] < 0.95 * results["losses"][0]
    assert_close(results["losses"], first["losses"], sum_length=10 * 1024)
    names = [name for name in first if name.startswith("trained.")]
    assert len(names) == 1 + 12 + 2 * 18
    weights = ({name: one[name] for name in names} for one in (results, first))
    assert_all_close(*weights, sum_length=10 * 1024)


@pytest.mark.parametrize("search", ["greedy", "beam"])
def test_a_model_directory_has_the_same_translations_and_scores(backends, backend, first, search):
    results = backends.results[backend]
    found, wanted = (
        [answer for answers in one[search] for answer in answers] for one in (results, first)
    )
    assert [one["tokens"] for one in found] == [one["tokens"] for one in wanted]
    assert len({tuple(one["tokens"]) for one in found}) > 3
    scores = [[one["score"] for one in answers] for answers in (found, wanted)]
    assert_close(*scores, scale=1.0)
    assert_close(results["scores"], first["scores"], scale=1.0)


def test_samples_follow_the_seed_and_are_whole(backends, backend):
    results = backends.results[backend]
    assert results["samples"] == results["samples_again"]
    samples = [answer["tokens"] for answers in results["samples"] for answer in answers]
    assert len(samples) == 15 and len(set(map(tuple, samples))) > 5
    for tokens in samples:
        assert all(0 <= token < 320 for token in tokens) and EOS not in tokens[:-1]
