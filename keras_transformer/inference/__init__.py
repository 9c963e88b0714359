"""From text to answers: a model with its tokenizers and a search, and model directories."""

from keras_transformer.inference.sentence_profile import SentenceProfile
from keras_transformer.inference.translator import Alignment, Hypothesis, Score, Translator

__all__ = ["Alignment", "Hypothesis", "Score", "SentenceProfile", "Translator"]
