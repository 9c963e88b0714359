"""The search that the command line asks for."""

import argparse

from keras_transformer.cli.arguments import beam_search
from keras_transformer.decoding import BeamSearch, GreedySearch


def options(**given):
    return argparse.Namespace(**{"beam_size": None, "length_penalty": None, "n_best": None} | given)


def test_without_options_the_search_of_the_model_is_used():
    search = GreedySearch()
    assert beam_search(options(), search) is search


def test_options_change_the_search_of_the_model_and_keep_the_rest_of_it():
    default = BeamSearch(beam_size=5, length_penalty=1.0, length_normalization="length")
    assert beam_search(options(beam_size=3), default) == BeamSearch(
        beam_size=3, length_penalty=1.0, length_normalization="length"
    )


def test_options_turn_another_search_into_a_beam_search():
    assert beam_search(options(beam_size=3), GreedySearch()) == BeamSearch(beam_size=3)
