"""Searches over a step function: greedy search, beam search and sampling."""

from keras_transformer.decoding.beam_search import BeamSearch, length_penalty
from keras_transformer.decoding.constraints import (
    Constraint,
    ForcedPrefix,
    Generated,
    MinimumLength,
    NoRepeatNgrams,
    RepetitionPenalty,
    SuppressTokens,
)
from keras_transformer.decoding.greedy_and_sampling import GreedySearch, Sampling
from keras_transformer.decoding.search import (
    SearchResult,
    Step,
    compile_search,
    search_from_dict,
    search_to_dict,
)
from keras_transformer.decoding.terms import RequiredTerms

__all__ = [
    "BeamSearch",
    "Constraint",
    "ForcedPrefix",
    "Generated",
    "GreedySearch",
    "MinimumLength",
    "NoRepeatNgrams",
    "RepetitionPenalty",
    "RequiredTerms",
    "Sampling",
    "SearchResult",
    "Step",
    "SuppressTokens",
    "compile_search",
    "length_penalty",
    "search_from_dict",
    "search_to_dict",
]
