"""The answer of a sentence does not depend on the other sentences of its batch."""

import functools

import numpy as np
import pytest

from keras_transformer.decoding import (
    BeamSearch,
    GreedySearch,
    MinimumLength,
    NoRepeatNgrams,
    RepetitionPenalty,
    Sampling,
    compile_search,
)
from keras_transformer.models import Ensemble
from tests.decoding.toy_model import assert_same_hypotheses, hypotheses
from tests.tiny_translator import tiny_model

SENTENCES = [[265, 289, 277, 3], [308, 3], [274, 264, 316, 280, 299, 298, 3]]
# Longer and shorter ones, which end earlier and later; and their limits.
EMPTY, SHORT, LONG, MIDDLE = [], [266, 3], [289] * 15 + [3], [277, 288, 305, 306, 3]
LIMITS = {(): 0, tuple(SHORT): 2, tuple(LONG): 24, tuple(MIDDLE): 13}
SEARCHES = {
    "greedy": GreedySearch(),
    "beam": BeamSearch(3, 0.6, n_best=3),
    "constrained beam": BeamSearch(4, constraints=[MinimumLength(5), NoRepeatNgrams(2)]),
    "constrained greedy": GreedySearch(constraints=[RepetitionPenalty(1.5)]),
    # The numbers of a row depend on its index in the batch; these two draws do not depend on them.
    "sampling of the best": Sampling(top_k=1, num_samples=2),
    "sampling of a tiny nucleus": Sampling(top_p=1e-9),
}


@functools.cache
def model_of(name):
    position = "learned" if name == "ensemble" else name
    config = {"position": position, "max_length": 32 if position == "learned" else None}
    models = [tiny_model(seed, **config) for seed in (13, 11)]
    return Ensemble(models) if name == "ensemble" else models[0]


@functools.cache
def compiled(model_name, search_name):
    model, search = model_of(model_name), SEARCHES[search_name]

    def function(source, limits, max_length):
        state, keep = model.start_decoding(source, search.width, max_length), model.keep_sentences
        return search(model.decode_step, state, limits, max_length, keep_sentences=keep)

    return compile_search(function, model.variables, sizes=("max_length",))


def answers(names, sentences):
    longest, limits = max(map(len, sentences)), [LIMITS.get(tuple(x), 9) for x in sentences]
    source = np.array([x + [0] * (longest - len(x)) for x in sentences], "int32")
    result = compiled(*names)(source, np.array(limits, "int32"), max_length=24)
    return [hypotheses(result, row) for row in range(len(sentences))]


@pytest.mark.parametrize("model_name, search_name", [
    ("sinusoidal", "beam"),
    *(pytest.param(model_name, search_name, marks=pytest.mark.slow)
      for model_name in ("sinusoidal", "rotary", "relative", "ensemble")
      for search_name in SEARCHES
      if (model_name, search_name) != ("sinusoidal", "beam")),
])  # fmt: skip
def test_a_sentence_has_the_answers_that_it_has_alone(model_name, search_name):
    names = model_name, search_name
    alone = [answers(names, [sentence])[0] for sentence in SENTENCES]
    assert len({answer[0][0] for answer in alone}) > 1
    batches = {0: SENTENCES, 1: [LONG, *SENTENCES, SHORT],
               2: [SHORT, MIDDLE, *SENTENCES, EMPTY, LONG]}  # fmt: skip
    for start, batch in batches.items():
        found = answers(names, batch)[start : start + 3]
        for one, expected in zip(found, alone, strict=True):
            assert_same_hypotheses(one, expected)
