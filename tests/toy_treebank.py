"""Trees of a toy grammar, in which the preposition alone says what its phrase belongs to."""

import random

from keras_transformer.parsing import Tree

_NOUNS = "dog cat man woman tree house child bird river boat".split()
_VERBS = "sees likes finds paints".split()


def toy_trees(number, seed=0):
    """Sentences such as "the dog sees a cat of the man with a boat ."."""
    generator = random.Random(seed)
    return [_sentence(generator) for _ in range(number)]


def write_toy_trees(path, number, seed=0):
    """Writes such trees to a file, one a line; returns its path."""
    path.write_text("".join(f"{tree}\n" for tree in toy_trees(number, seed)))
    return path


def _sentence(generator):
    verb_phrase = [Tree("VBZ", generator.choice(_VERBS)), _noun_phrase(generator)]
    if generator.random() < 0.5:
        verb_phrase.append(Tree("PP", [Tree("IN", "with"), _noun_phrase(generator)]))
    parts = [_noun_phrase(generator), Tree("VP", verb_phrase), Tree(".", ".")]
    return Tree("S", parts)


def _noun_phrase(generator):
    words = [Tree("DT", generator.choice(("the", "a"))), Tree("NN", generator.choice(_NOUNS))]
    if generator.random() < 0.8:
        return Tree("NP", words)
    phrase = Tree("PP", [Tree("IN", "of"), _noun_phrase(generator)])
    return Tree("NP", [Tree("NP", words), phrase])
