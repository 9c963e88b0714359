"""The built-in corpus of numbers in English and German words, and the command that uses it."""

from keras_transformer import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__, {"corpus": ["number_corpus"]})
