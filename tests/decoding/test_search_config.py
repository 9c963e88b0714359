"""Searches survive JSON with their constraints, and settings that make no sense are named."""

import json

import numpy as np
import pytest
from keras import ops

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


@pytest.mark.parametrize("search", [
    BeamSearch(5, 1.0, 3, "length", patience=2.0), Sampling(0.7, 10, 0.9, 4, 123),
    BeamSearch(2, np.float32(0.5), constraints=[RepetitionPenalty(np.float32(1.5))]),
    GreedySearch(constraints=ALL), Sampling(np.float64(0.5)),
])  # fmt: skip
def test_round_trip(search):
    written = search_to_dict(search)
    again = search_from_dict(json.loads(json.dumps(written)))
    assert again == search and hash(again) == hash(search)
    assert ("constraints" in written) == bool(search.constraints)
    assert isinstance(search.constraints, tuple)


# The last argument of each is refused.
WRONG = {
    BeamSearch: [
        {"beam_size": 0}, {"beam_size": True}, {"beam_size": 2, "n_best": 3}, {"patience": 0.2},
        {"length_penalty": -0.1}, {"length_penalty": NAN}, {"length_normalization": "log"},
    ],
    # 1e-38 is 0 where float32 has no denormals, and 1e-46 everywhere.
    Sampling: [
        {"temperature": 1e-38}, {"temperature": 10**400}, {"top_k": 0}, {"top_p": 1e-46},
        {"top_p": 1.1}, {"num_samples": 0}, {"seed": -1},
    ],
    GreedySearch: [{"constraints": [5]}, {"constraints": [MinimumLength]}],
    NoRepeatNgrams: [{"size": 101}],
    RepetitionPenalty: [{"penalty": 0}, {"penalty": NAN}],
    SuppressTokens: [{"ids": []}, {"ids": [-1]}],
}  # fmt: skip


@pytest.mark.parametrize("kind, settings", [(k, one) for k, rows in WRONG.items() for one in rows])
def test_settings_that_make_no_sense_are_refused_by_name(kind, settings):
    *_, (name, value) = settings.items()
    with pytest.raises(ValueError) as error:
        kind(**settings)
    assert str(error.value).endswith(f"Received: {name}={value!r}")


def test_calls_that_make_no_sense_are_refused():
    def other_dtype(tokens, parents, state):
        return ops.zeros((1, 4)), ops.cast(state, "float16")

    step, state, greedy = table_step(np.zeros((4, 4))), ops.zeros((1, 2)), GreedySearch()
    forced = ForcedPrefix(np.zeros((1, 2)))
    for call, message in (
        (lambda: search_from_dict({"name": "diverse"}), "name='diverse'"),
        (lambda: search_from_dict({"name": "beam", "beams": 4}), "beams"),
        (lambda: search_from_dict({"name": "greedy", "constraints": [{"name": "rhyme"}]}), "rhyme"),
        (lambda: search_to_dict(4), "Received: search=4"),
        (lambda: search_to_dict(GreedySearch([forced])), "constraint that can be saved must be"),
        (lambda: ForcedPrefix([1, 2]), r"ids of shape \(2,\)"),
        (lambda: greedy(step, (), [2], 2, constraints=[5]), r"Received: constraints=\(5,\)"),
        (lambda: GreedySearch([SuppressTokens([9])])(step, (), [2], 2), r"size, 4.*ids=\(9,\)"),
        (lambda: greedy(step, (), [3], 0), "Received: max_length=0"),
        (lambda: greedy(step, (), [[3]], 3), r"`max_lengths` must have the shape \[batch\]"),
        (lambda: greedy(other_dtype, state, [3], 3), "dtypes it was given"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
