"""The searches that a training's settings ask for."""

from keras_transformer.decoding import BeamSearch, GreedySearch


def beam_search(recipe, beam_size: int) -> BeamSearch:
    return BeamSearch(
        beam_size, recipe.length_penalty, length_normalization=recipe.length_normalization
    )


def fast_search(recipe, beam_size: int) -> BeamSearch | GreedySearch:
    return GreedySearch() if beam_size == 1 else beam_search(recipe, beam_size)
