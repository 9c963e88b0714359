"""The search that the command line asks for."""

import argparse
import dataclasses

import pytest

from keras_transformer.cli.arguments import choose_search
from keras_transformer.decoding import (
    BeamSearch,
    GreedySearch,
    MinimumLength,
    NoRepeatNgrams,
    RepetitionPenalty,
    Sampling,
    SuppressTokens,
)

BY_LENGTH = BeamSearch(beam_size=5, length_penalty=1.0, length_normalization="length")
SHORTEST, NO_NUMBERS = MinimumLength(2), SuppressTokens([7])
ASKED = {"min_length": 5, "no_repeat_ngram": 3, "repetition_penalty": 1.5, "suppress_unknown": True}
CHANGED = [NO_NUMBERS, MinimumLength(5), NoRepeatNgrams(3), RepetitionPenalty(1.5)]


@pytest.mark.parametrize(
    "given, default, expected",
    [
        # The rest of the model's search is kept.
        ({"beam_size": 3}, BY_LENGTH, dataclasses.replace(BY_LENGTH, beam_size=3)),
        # A beam replaces another search, and keeps its constraints.
        ({"beam_size": 3}, GreedySearch([SHORTEST]), BeamSearch(3, constraints=[SHORTEST])),
        # A constraint replaces one of its kind; other tokens stay suppressed.
        (
            ASKED,
            Sampling(seed=4, constraints=[SHORTEST, NO_NUMBERS]),
            Sampling(seed=4, constraints=[*CHANGED, SuppressTokens([1])]),
        ),
    ],
)
def test_options_change_the_search_of_the_model(given, default, expected):
    nothing = dict.fromkeys(["beam_size", "length_penalty", "n_best", *ASKED])
    nothing["suppress_unknown"] = False
    assert choose_search(argparse.Namespace(**nothing), default) is default
    assert choose_search(argparse.Namespace(**nothing | given), default) == expected
