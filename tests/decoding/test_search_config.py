"""Searches survive JSON with their constraints, and settings that make no sense are named."""

import json

import numpy as np
import pytest

from keras_transformer.decoding import (
    BeamSearch,
    ForcedPrefix,
    GreedySearch,
    MinimumLength,
    NoRepeatNgrams,
    RepetitionPenalty,
    Sampling,
    SuppressTokens,
    search_from_dict,
    search_to_dict,
)
from tests.decoding.toy_model import table_step

ALL = [MinimumLength(3), NoRepeatNgrams(4), RepetitionPenalty(1.2), SuppressTokens((1, 7))]
NAN = float("nan")


@pytest.mark.parametrize(
    "search",
    [
        BeamSearch(5, 1.0, 3, "length", patience=2.0),
        Sampling(0.7, 10, 0.9, 4, 123),
        Sampling(np.float32(0.5), top_p=np.float64(0.5)),
        BeamSearch(2, np.float32(0.5), constraints=[RepetitionPenalty(np.float32(1.5))]),
        *(search_class(constraints=ALL) for search_class in (GreedySearch, BeamSearch, Sampling)),
    ],
)
def test_round_trip(search):
    written = search_to_dict(search)
    again = search_from_dict(json.loads(json.dumps(written)))
    assert again == search and hash(again) == hash(search)
    assert ("constraints" in written) == bool(search.constraints)
    assert isinstance(search.constraints, tuple)


# The last argument of each is refused.
WRONG = {
    BeamSearch: [
        {"beam_size": 0}, {"beam_size": True}, {"beam_size": 2**31}, {"beam_size": 2, "n_best": 3},
        {"length_penalty": -0.1}, {"length_penalty": NAN}, {"length_penalty": "0.6"},
        {"length_normalization": "log"}, {"patience": 0.2},
    ],
    # 1e-38 is 0 where float32 has no denormals, and 1e-46 everywhere.
    Sampling: [
        {"temperature": 0}, {"temperature": 1e-38}, {"temperature": 10**400}, {"top_k": 0},
        {"top_p": 1e-46}, {"top_p": 1.1}, {"num_samples": 0}, {"seed": -1},
    ],
    GreedySearch: [{"constraints": [5]}, {"constraints": [MinimumLength]}],
    MinimumLength: [{"length": 0}],
    NoRepeatNgrams: [{"size": True}, {"size": 101}],
    RepetitionPenalty: [{"penalty": 0}, {"penalty": NAN}],
    SuppressTokens: [{"ids": []}, {"ids": [-1]}],
}  # fmt: skip


@pytest.mark.parametrize("kind, settings", [(k, one) for k, rows in WRONG.items() for one in rows])
def test_settings_that_make_no_sense_are_refused_by_name(kind, settings):
    *_, (name, value) = settings.items()
    with pytest.raises(ValueError) as error:
        kind(**settings)
    assert str(error.value).endswith(f"Received: {name}={value!r}")


class NotSaved:
    def start(self, max_lengths, width):
        return ()

    def __call__(self, state, log_probabilities, generated):
        return state, log_probabilities


@pytest.mark.parametrize("settings, message", [
    ({}, "name=None"),
    ({"name": "diverse"}, "name='diverse'"),
    ({"name": "beam", "beams": 4}, "beams"),
    ({"name": "beam", "beam_size": 0}, "beam_size=0"),
    ({"name": "greedy", "constraints": [{"name": "rhyme"}]}, "name='rhyme'"),
    ({"name": "greedy", "constraints": [{"name": "minimum_length"}]},
     r"must have the setting 'length'. Received: \[\]"),
])  # fmt: skip
def test_dicts_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        search_from_dict(settings)


def test_what_is_no_search_or_constraint_is_refused():
    with pytest.raises(ValueError, match="Received: search=4"):
        search_to_dict(4)
    with pytest.raises(ValueError, match="A constraint that can be saved must be one of"):
        search_to_dict(BeamSearch(constraints=[NotSaved()]))
    with pytest.raises(ValueError, match=r"ids of shape \(2,\)"):
        ForcedPrefix([1, 2])
    arguments = table_step(np.zeros((4, 4))), (), [2], 2
    with pytest.raises(ValueError, match=r"Received: constraints=\(5,\)"):
        GreedySearch()(*arguments, constraints=[5])
    with pytest.raises(ValueError, match=r"below the vocabulary size, 4. Received: ids=\(9,\)"):
        GreedySearch([SuppressTokens([9])])(*arguments)
