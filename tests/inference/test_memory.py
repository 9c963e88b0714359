"""A search that does not fit into the memory is refused before it begins."""

import pytest

from keras_transformer.decoding import BeamSearch, GreedySearch, Sampling
from keras_transformer.errors import UserError
from keras_transformer.inference import batch_inference
from keras_transformer.inference.batch_inference import BatchInference
from keras_transformer.models import Ensemble
from tests.tiny_translator import tiny_model, tiny_translator


@pytest.fixture
def memory(monkeypatch):
    """Sets how much memory is free, in bytes."""
    return lambda free: monkeypatch.setattr(batch_inference, "free_memory", lambda: free)


def test_the_estimate_counts_the_tensors_that_there_must_be():
    model = tiny_model(num_decoder_layers=3)
    beams, limit = 50, 100
    keys_and_values = 2 * 4 * 3 * 32 * beams * limit
    logits = 2 * 4 * 320 * beams
    candidates = 2 * 4 * 2 * beams * beams
    needed = batch_inference.search_bytes(model, BeamSearch(beams), 1, limit)
    assert needed > keys_and_values + logits + candidates
    both = batch_inference.search_bytes(Ensemble([model, model]), BeamSearch(beams), 1, limit)
    assert both > needed + keys_and_values
    assert batch_inference.search_bytes(model, GreedySearch(), 50, limit) < needed / 20


def test_fewer_searches_at_a_time_where_all_do_not_fit(memory):
    model, search = tiny_model(), BeamSearch(10)
    needed = batch_inference.search_bytes(model, search, 5, 20)
    for free, expected in ((None, 4), (4 * needed, 4), (2.5 * needed, 2), (needed, 1)):
        memory(free)
        assert batch_inference.streams_that_fit(model, search, 5, 20, 4) == expected


@pytest.mark.parametrize("search", [BeamSearch(4_096), Sampling(num_samples=4_096)])
def test_a_search_that_does_not_fit_is_refused_before_it_begins(search, memory, monkeypatch):
    memory(1e6)
    monkeypatch.setattr(BatchInference, "search_batch", lambda *_, **__: pytest.fail("searched"))
    with pytest.raises(UserError, match=r"about .* GB .*Received: 4,096 beams or samples"):
        tiny_translator().translate(["a dog"], search=search)
    assert tiny_translator().translate([""], search=search) == [""]


def test_batches_of_several_beams_have_fewer_sentences():
    sizes = {width: batch_inference.default_batch_size(width) for width in (1, 2, 4, 5, 300)}
    assert sizes == {1: 128, 2: 128, 4: 64, 5: 51, 300: 1}
