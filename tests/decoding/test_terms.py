"""Required terms: a wide beam finds the best of all sequences with them, a narrow one has them."""

import itertools

import numpy as np
import pytest
from keras import ops

from keras_transformer.decoding import (
    BeamSearch,
    ForcedPrefix,
    GreedySearch,
    NoRepeatNgrams,
    RequiredTerms,
    Sampling,
    SuppressTokens,
    compile_search,
)
from keras_transformer.layers.caches import hypotheses_of, take_entries
from tests.closeness import assert_close
from tests.decoding.toy_model import EOS, ToyModel, array, hypotheses
from tests.oracle.search import gnmt

VOCABULARY, LENGTH = 6, 5
# Terms that begin with each other, end in each other, repeat themselves, and stand there twice.
TERMS = [
    [], [(4,)], [(4, 5)], [(4, 5), (5,)], [(4,), (4, 5)], [(4,), (4,)], [(4, 5), (5, 1)],
    [(5, 4, 1)], [(1, 1)], [(1, 4, 1)], [(4,), (5,), (1,)], [(4, 5), (4, 5)],
]  # fmt: skip


def padded(terms):
    number, length = (max(map(len, lists)) for lists in (terms, itertools.chain(*terms)))
    ids = np.zeros((len(terms), number, length), "int32")
    for row, own in zip(ids, terms, strict=True):
        for line, term in zip(row, own, strict=False):
            line[: len(term)] = term
    return ops.convert_to_tensor(ids)


def contains(tokens, terms):
    """Whether all terms are in the tokens, side by side."""
    if not terms:
        return True
    term, *others = terms
    spans = (slice(start, start + len(term)) for start in range(len(tokens)))
    return any(
        tokens[span] == term
        and contains((*tokens[: span.start], None, *tokens[span.stop :]), others)
        for span in spans
    )


def keep_sentences(width):
    return lambda state, kept: take_entries(state, hypotheses_of(kept, width))


def run(model, search, terms, max_lengths, **options):
    width, sentences = search.width, list(range(len(terms)))

    def find(ids):
        constraints = [*options.get("constraints", ()), RequiredTerms(ids, options.get("start"))]
        return search(
            model.step, model.start(sentences, width), max_lengths, max(max_lengths),
            constraints=constraints, keep_sentences=keep_sentences(width),
        )  # fmt: skip

    result = compile_search(find)(padded(terms))
    return [hypotheses(result, sentence) for sentence in sentences]


def test_a_wide_beam_finds_the_best_of_all_sequences_with_the_terms():
    model = ToyModel(VOCABULARY, seed=1)
    answers = run(model, BeamSearch(60, n_best=3), TERMS, [LENGTH] * len(TERMS))
    others = [token for token in range(VOCABULARY) if token != EOS]
    for sentence, (terms, found) in enumerate(zip(TERMS, answers, strict=True)):
        rows, ranked = model.next_log_probabilities(sentence), []
        for length in range(LENGTH):
            for tokens in itertools.product(others, repeat=length):
                if contains(tokens, terms):
                    tokens = (*tokens, EOS)
                    total = sum(rows(tokens[:i])[token] for i, token in enumerate(tokens))
                    ranked.append((total / gnmt(len(tokens), 0.6), tokens))
        ranked = sorted(ranked, reverse=True)[: len(found)]
        finished = [(tokens, score) for tokens, score, _ in found if EOS in tokens]
        assert [tokens for tokens, _ in finished] == [tokens for _, tokens in ranked]
        assert_close([score for _, score in finished], [score for score, _ in ranked], scale=1.0)


@pytest.mark.parametrize("beam_size", [1, 4])
def test_every_hypothesis_of_a_narrow_beam_has_the_terms_in_its_room(beam_size):
    model = ToyModel(VOCABULARY, eos_bias=2.0)
    needed = [1 + sum(map(len, terms)) for terms in TERMS]
    twice, limits = TERMS * 2, [number + spare for spare in (0, 9) for number in needed]
    search = BeamSearch(beam_size, n_best=beam_size)
    for terms, limit, found in zip(twice, limits, run(model, search, twice, limits), strict=True):
        assert found[0][0]
        for tokens, _, log_probability in found:
            if log_probability > float("-inf"):
                assert contains(tokens[:limit], terms), (terms, tokens)


def test_terms_come_after_a_prefix_and_in_spite_of_other_constraints():
    model, terms = ToyModel(VOCABULARY), [[(4, 5), (4, 5)], [(1,), (5, 4)]]
    prefix = np.array([[5, 1], [2, 0]], "int32")
    search = BeamSearch(5, constraints=[NoRepeatNgrams(1), SuppressTokens([4])])
    options = {"constraints": [ForcedPrefix(prefix)], "start": [2, 1]}
    (first, _, total), (second, *_) = (
        found[0] for found in run(model, search, terms, [8, 8], **options)
    )
    assert first[:2] == (5, 1) and contains(first[2:], terms[0])
    assert second[:1] == (2,) and contains(second[1:], terms[1])
    rows = model.next_log_probabilities(0)
    assert_close(total, sum(rows(first[:i])[token] for i, token in enumerate(first)), scale=1.0)


def test_no_token_that_goes_on_with_a_word_follows_a_term():
    model, search = ToyModel(VOCABULARY), BeamSearch(6, n_best=6)
    goes_on = np.isin(np.arange(VOCABULARY), [1, 5])
    for may_go_on in (True, False):
        joins = np.stack([goes_on, np.full(VOCABULARY, may_go_on)])
        terms = RequiredTerms(padded([[(2, 4)]]), joins=joins)
        result = search(model.step, model.start([7], 6), [8], 8, constraints=[terms])
        answers = [tokens for tokens, *_ in hypotheses(result, 0)]
        ends = [
            next(i for i in range(1, 8) if tokens[i - 1 : i + 1] == (2, 4)) for tokens in answers
        ]
        following = {tokens[end + 1] for tokens, end in zip(answers, ends, strict=True) if end < 7}
        assert bool(following & {1, 5}) != may_go_on


def test_a_sentence_without_terms_is_searched_as_without_the_constraint():
    model, search = ToyModel(VOCABULARY), BeamSearch(4, n_best=4)
    [found, _] = run(model, search, [[], [(4,)]], [7, 7])
    plain = search(model.step, model.start([0], 4), [7], 7)
    assert [one[0] for one in found] == [one[0] for one in hypotheses(plain, 0)]


@pytest.mark.parametrize("search", [GreedySearch(), Sampling(num_samples=2), BeamSearch(2)])
def test_other_searches_and_an_earlier_place_are_refused(search):
    model = ToyModel(VOCABULARY)
    constraints = [RequiredTerms(padded([[(4,)]]))]
    if isinstance(search, BeamSearch):
        constraints.append(NoRepeatNgrams(2))
    with pytest.raises(ValueError, match="must be the last constraint of a BeamSearch"):
        search(model.step, model.start([0], 2), [4], 4, constraints=constraints)


def test_ids_have_three_axes():
    with pytest.raises(ValueError, match="ids"):
        RequiredTerms(array([[4]]))
