"""The search that the command line asks for."""

import argparse

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
