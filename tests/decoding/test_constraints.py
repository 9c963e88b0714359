"""Every constraint in every search == the same rule in a plain Python search."""

import numpy as np
import pytest
from keras import ops

from keras_transformer.decoding import (
    BeamSearch,
    ForcedPrefix,
    GreedySearch,
    MinimumLength,
    NoRepeatNgrams,
    RepetitionPenalty,
    Sampling,
    SuppressTokens,
    compile_search,
)
from tests.closeness import assert_close
from tests.decoding.toy_model import (
    EOS,
    ToyModel,
    assert_same_hypotheses,
    hypotheses,
)
from tests.oracle import constraints as rules
from tests.oracle import search as oracle

SENTENCES = list(range(0, 96, 8))
MAX_LENGTHS = [1 + i % 11 for i in range(len(SENTENCES))]
PREFIXES = [((), (4,), (1, 4, 1, 4, 4), (3, 0), (1,) * 20)[i % 5] for i in range(len(SENTENCES))]


class Budget:
    """The ids of an answer add up to at most the sentence's budget.

    The state, what is left, is carried along: it is wrong at once if it does not follow the beams.
    """

    def __init__(self, budgets):
        self.budgets = budgets

    def start(self, max_lengths, width):
        return {"left": ops.repeat(ops.convert_to_tensor(self.budgets, dtype="int32"), width)}

    def __call__(self, state, log_probabilities, generated):
        left = state["left"] - ops.where(generated.length == 0, 0, generated.last_tokens)
        is_out = ops.arange(log_probabilities.shape[-1]) > ops.expand_dims(left, -1)
        return {"left": left}, ops.where(is_out, float("-inf"), log_probabilities)


def padded(rows):
    length = max(map(len, rows))
    return np.array([[*row, *[9] * (length - len(row))] for row in rows], "int32")


# Constraints of the search, constraints of the call, and the rules of a sentence.
CASES = {
    "no_token_twice": ([NoRepeatNgrams(1)], lambda: [], lambda i: [rules.no_repeat_ngrams(1)]),
    "no_trigram_twice": ([NoRepeatNgrams(3)], lambda: [], lambda i: [rules.no_repeat_ngrams(3)]),
    "several": (
        [MinimumLength(4), NoRepeatNgrams(2), SuppressTokens([1]), RepetitionPenalty(1.3)],
        lambda: [ForcedPrefix(padded(PREFIXES), pad_id=9, num_given=1)],
        lambda i: [
            rules.minimum_length(4, MAX_LENGTHS[i], EOS), rules.no_repeat_ngrams(2),
            rules.suppress_tokens([1]), rules.repetition_penalty(1.3),
            rules.forced_prefix(PREFIXES[i], num_given=1),
        ],
    ),
    "everything_ruled_out": (
        [SuppressTokens(range(6))], lambda: [], lambda i: [rules.suppress_tokens(range(6))],
    ),
    "budget": (
        [], lambda: [Budget([3 * i for i in range(len(SENTENCES))])],
        lambda i: [rules.budget(3 * i)],
    ),
}  # fmt: skip


def plain_search(search, next_log_probabilities, max_length):
    if isinstance(search, GreedySearch):
        return oracle.greedy_search(next_log_probabilities, max_length, EOS)
    return oracle.beam_search(
        next_log_probabilities, search.beam_size, search.length_penalty, search.n_best,
        max_length, EOS,
    )  # fmt: skip


# Each pair is a graph: all searches see several constraints.
@pytest.mark.parametrize("case, search_class", [
    *(("several", name) for name in ("greedy", "beam of 1", "beam of 3")),
    *((case, "beam of 3") for case in CASES if case != "several"),
])  # fmt: skip
def test_a_constrained_search_equals_a_plain_search_with_rules(case, search_class):
    constraints, of_the_call, rules_of = CASES[case]
    search = {
        "greedy": GreedySearch(constraints),
        "beam of 1": BeamSearch(1, constraints=constraints),
        "beam of 3": BeamSearch(3, n_best=3, constraints=constraints),
    }[search_class]
    model = ToyModel(6, seed=3, eos_bias=-0.5)

    def function(sentences, max_lengths, max_length):
        state = model.start(sentences, search.width)
        more = {"constraints": of_the_call()}
        return search(model.step, state, max_lengths, max_length, **more)

    arrays = np.array(SENTENCES, "int32"), np.array(MAX_LENGTHS, "int32")
    result = compile_search(function, sizes=("max_length",))(*arrays, max_length=11)
    for i, sentence in enumerate(SENTENCES):
        follows_rules = rules.constrained(model.next_log_probabilities(sentence), *rules_of(i))
        expected = plain_search(search, follows_rules, MAX_LENGTHS[i])
        found = hypotheses(result, i)
        assert_same_hypotheses(found[: len(expected)], expected)
        empty = ((), -np.inf, -np.inf)
        assert found[len(expected) :] == [empty] * (len(found) - len(expected))


@pytest.mark.parametrize("search", [
    Sampling(num_samples=200), Sampling(top_k=3, top_p=0.9, num_samples=200),
])  # fmt: skip
def test_samples_follow_constraints_with_the_model_s_log_probabilities(search):
    model = ToyModel(6, seed=1)
    budget = [Budget([12, 14]), ForcedPrefix([[0, 4], [9, 9]], pad_id=9)]
    state = model.start([10, 20], search.width)
    result = search(model.step, state, [9, 9], 9, constraints=budget)
    distinct = set()
    for i, sentence in enumerate([10, 20]):
        plain = model.next_log_probabilities(sentence)
        of_sentence = rules.budget((12, 14)[i]), rules.forced_prefix((0, 4) if i == 0 else ())
        allowed = rules.constrained(plain, *of_sentence)
        for tokens, _, log_probability in hypotheses(result, i):
            steps = [(tokens[:j], token) for j, token in enumerate(tokens)]
            assert all(allowed(prefix)[token] > -np.inf for prefix, token in steps)
            total = sum(plain(prefix)[token] for prefix, token in steps)
            assert_close(log_probability, total, scale=1.0)
            distinct.add(tokens)
    assert len(distinct) > 20
    nothing = Sampling(num_samples=2, constraints=[SuppressTokens(range(6))])
    result = nothing(model.step, model.start([10], 2), [9], 9)
    assert hypotheses(result, 0) == [((), -np.inf, -np.inf)] * 2
