"""Constraints: rules for the next token that every search can follow."""

from keras_transformer.decoding.constraints.constraint import Constraint, Generated
from keras_transformer.decoding.constraints.forced_prefix import ForcedPrefix
from keras_transformer.decoding.constraints.minimum_length import MinimumLength
from keras_transformer.decoding.constraints.no_repeat_ngrams import NoRepeatNgrams
from keras_transformer.decoding.constraints.repetition_penalty import RepetitionPenalty
from keras_transformer.decoding.constraints.suppress_tokens import SuppressTokens

__all__ = [
    "Constraint",
    "ForcedPrefix",
    "Generated",
    "MinimumLength",
    "NoRepeatNgrams",
    "RepetitionPenalty",
    "SuppressTokens",
]
