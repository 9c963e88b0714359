"""The built-in corpus of numbers in English and German words, and the command that uses it."""

from keras_transformer.quickstart.corpus import number_corpus

__all__ = ["number_corpus"]
