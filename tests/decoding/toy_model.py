"""A model of a few lines whose next token depends on the whole prefix, for the tests of searches.

A row's prefix is folded into one number, which picks a row of a table of random logits. The number
is all that the state carries, so a search that reorders hypotheses wrongly goes astray at once.
"""

import numpy as np
from keras import ops

from tests.closeness import assert_close
from tests.oracle.search import log_softmax

NUM_PREFIXES = 997
BOS, EOS, PAD = 2, 3, 0


def array(tensor):
    return ops.convert_to_numpy(tensor)


def assert_same(found, expected):
    """Two `SearchResult`s are equal up to rounding."""
    for one, other in zip(found, expected, strict=True):
        assert_close(array(one), array(other), scale=1.0)


class ToyModel:
    """The same random model as a step function and as a plain function of the prefix."""

    def __init__(
        self, vocabulary, seed=0, sharpness=1.5, dtype="float32", eos=EOS, bos=BOS, eos_bias=0.0
    ):
        generator = np.random.default_rng(seed)
        table = sharpness * generator.standard_normal((NUM_PREFIXES, vocabulary))
        table[:, eos] += eos_bias
        rounded = ops.cast(ops.cast(table, dtype), "float32")
        self.table = ops.convert_to_numpy(rounded).astype("float64")
        self.dtype = dtype
        self.vocabulary = vocabulary
        self.bos = bos

    def start(self, sentences, width):
        """State for `width` hypotheses of each sentence, an int that picks its model."""
        folded = ops.repeat(ops.convert_to_tensor(sentences, dtype="int32"), width)
        buffer = ops.cast(ops.expand_dims(folded, -1) + ops.zeros((1, 4), "int32"), "float32")
        return {"folded": folded, "caches": (buffer, [ops.convert_to_tensor(0, dtype="int32")])}

    def step(self, tokens, parents, state):
        folded = state["folded"]
        buffer, (calls,) = state["caches"]
        if parents is not None:
            folded = ops.take(folded, parents, axis=0)
            buffer = ops.take(buffer, parents, axis=0)
        folded = ops.mod(folded * 31 + tokens + 1, NUM_PREFIXES)
        logits = ops.take(ops.cast(self.table, self.dtype), folded, axis=0)
        return logits, {"folded": folded, "caches": (buffer, [calls + 1])}

    def next_log_probabilities(self, sentence):
        def of_prefix(prefix):
            folded = int(sentence)
            for token in (self.bos, *prefix):
                folded = (folded * 31 + token + 1) % NUM_PREFIXES
            return log_softmax(self.table[folded])

        return of_prefix


def table_step(log_probabilities, dtype="float32"):
    """Step without a state: the row of a table `[vocabulary, vocabulary]` for the last token."""
    table = np.asarray(log_probabilities, dtype)

    def step(tokens, parents, state):
        del parents
        return ops.take(ops.convert_to_tensor(table), tokens, axis=0), state

    return step


def hypotheses(result, sentence):
    """The hypotheses of one sentence: (tokens tuple up to its length, score, log-probability)."""
    tokens, scores, log_probabilities, lengths = (ops.convert_to_numpy(x)[sentence] for x in result)
    return [
        (tuple(tokens[i, : lengths[i]].tolist()), float(scores[i]), float(log_probabilities[i]))
        for i in range(len(lengths))
    ]


def assert_same_hypotheses(found, expected):
    """Same tokens in the same order, and close scores and log-probabilities."""
    assert [one[0] for one in found] == [one[0] for one in expected]
    for one, other in zip(found, expected, strict=True):
        assert_close(one[1:], other[1:], scale=1.0)
