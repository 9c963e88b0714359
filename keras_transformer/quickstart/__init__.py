"""The built-in corpus of numbers in English and German words, and the command that uses it."""

from keras_transformer import lazy_names

__all__ = ["number_corpus"]

__getattr__ = lazy_names(__name__, {"corpus": __all__})
