"""The oracle's searches on tables small enough to search by hand."""

import math

import pytest

from tests.oracle import search

EOS = 0
# After nothing: b (1) .4, c (2) .35, end .25; after b: end .3, b .35, c .35; after c: end .98.
TABLE = {None: [0.25, 0.4, 0.35], 1: [0.3, 0.35, 0.35], 2: [0.98, 0.01, 0.01]}


def next_log_probabilities(prefix):
    return [math.log(p) for p in TABLE[prefix[-1] if prefix else None]]


def test_length_penalties_are_their_formulas():
    assert search.gnmt(1, 0.6) == 1.0
    assert search.gnmt(7, 1.0) == 2.0
    assert search.by_length(9, 0.5) == 3.0
    assert search.by_length(9, 0.0) == search.gnmt(9, 0.0) == 1.0


def test_greedy_search_takes_the_best_token_each_time_and_the_lower_id_of_two():
    (best,) = search.greedy_search(next_log_probabilities, 3, EOS)
    assert best.tokens == (1, 1, 1)
    assert math.isclose(best.log_probability, math.log(0.4 * 0.35 * 0.35))


def test_exhaustive_search_finds_what_greedy_search_misses():
    """Unnormalized .35 * .98 = .343 is the best, then the end alone, .25, then c after b."""
    found = search.exhaustive_search(next_log_probabilities, 3, 0.0, 3, 3, EOS)
    assert [one.tokens for one in found] == [(2, 0), (0,), (1, 2, 0)]
    assert math.isclose(found[0].log_probability, math.log(0.343))
    assert math.isclose(found[2].log_probability, math.log(0.4 * 0.35 * 0.98))


@pytest.mark.parametrize(
    "penalty,alpha,best",
    [
        (search.gnmt, 0.0, (2, 0)),
        (search.gnmt, 5.0, (1, 2, 0)),
        (search.by_length, 1.0, (2, 0)),
        (search.by_length, 2.0, (1, 2, 0)),
    ],
)
def test_the_penalty_decides_between_short_and_long(penalty, alpha, best):
    """log .343 against log .1372: over 7/6 and 8/6, or over 2 and 3, to the power alpha."""
    found = search.exhaustive_search(next_log_probabilities, 3, alpha, 1, 3, EOS, penalty)
    assert found[0].tokens == best
    total = sum(next_log_probabilities(best[:i])[token] for i, token in enumerate(best))
    by_hand = {
        search.gnmt: total / ((5 + len(best)) / 6) ** alpha,
        search.by_length: total / len(best) ** alpha,
    }
    assert math.isclose(found[0].score, by_hand[penalty])


@pytest.mark.parametrize("penalty", [search.gnmt, search.by_length])
@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
def test_a_beam_that_holds_every_prefix_is_exhaustive(penalty, alpha):
    arguments = (alpha, 5, 3, EOS, penalty)
    assert search.beam_search(next_log_probabilities, 27, *arguments) == search.exhaustive_search(
        next_log_probabilities, 3, *arguments
    )


def test_a_beam_of_one_is_greedy():
    (greedy,) = search.greedy_search(next_log_probabilities, 4, EOS)
    (beam,) = search.beam_search(next_log_probabilities, 1, 0.0, 1, 4, EOS)
    assert beam == greedy
