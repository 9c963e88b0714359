"""A tiny parser with random weights, whose trees differ from sentence to sentence."""

import numpy as np

from keras_transformer.data import SubwordTokenizer
from keras_transformer.decoding import BeamSearch
from keras_transformer.parsing import Linearization
from keras_transformer.parsing.linearization import NUMBERS
from keras_transformer.parsing.parser import Parser
from tests.tiny_translator import tiny_model, tiny_tokenizer

LABELS = ("S", "NP", "VP", "PP")


def symbol_tokenizer(linearization=None, words=()):
    """The target's vocabulary for a way to write trees; `words` are those that it can write."""
    linearization = linearization or Linearization()
    if linearization.joined:
        openings = [f"({label}" for label in LABELS] + ["(S(NP", "(NP(PP(NP"]
        return SubwordTokenizer([*openings, "(NP)", "(VP(NP))", ")", "))", "XX"])
    closings = [f"){label}" for label in LABELS] if linearization.labelled_closing else [")"]
    leaves = ["NN", "VB", "IN"] if linearization.tags else ["XX"]
    if linearization.words:
        leaves = list(words)
    if linearization.numbers:
        leaves = list(NUMBERS)
    return SubwordTokenizer([f"({label}" for label in LABELS] + closings + leaves)


def parsing_model(target_tokenizer, seed=13, vocab_size=320, **overrides):
    """A model that opens and closes constituents as it writes words, each now and then."""
    size = target_tokenizer.vocab_size
    model = tiny_model(seed, vocab_size=vocab_size, target_vocab_size=size, **overrides)
    d_model = model.config.d_model
    table = np.random.default_rng(seed).normal(0.0, 3.0 * d_model**-0.5, (size, d_model))
    model.target_embedding.weights[0].assign(table)
    return model


def tiny_parser(seed=13, linearization=None, source=None, target=None, model=None, **settings):
    source = source or tiny_tokenizer()
    target = target or symbol_tokenizer(linearization)
    model = model or parsing_model(target, seed, source.vocab_size)
    settings = {"search": BeamSearch(3, 0.3), "extra_length": 24, **settings}
    return Parser(model, source, target, linearization, **settings)
