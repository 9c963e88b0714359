"""Searches in plain Python, slow and short, against which the library's are checked.

Written from the definitions of the search alone; nothing of the package is imported.
`next_log_probabilities(prefix)` gives the log-probability of every id after a tuple of ids (without
BOS). Every search returns a list of `Hypothesis`, best first.
"""

import itertools
import math
from typing import NamedTuple

MINUS_INFINITY = float("-inf")


class Hypothesis(NamedTuple):
    tokens: tuple  # without BOS; ends in EOS if it finished
    score: float
    log_probability: float


def gnmt(length, alpha):
    return ((5 + length) / 6) ** alpha


def by_length(length, alpha):
    return length**alpha


def greedy_search(next_log_probabilities, max_length, eos):
    tokens, total = (), 0.0
    while len(tokens) < max_length and eos not in tokens:
        row = next_log_probabilities(tokens)
        best = max(range(len(row)), key=lambda token: (row[token], -token))
        if row[best] == MINUS_INFINITY:
            return []
        tokens, total = (*tokens, best), total + row[best]
    return [Hypothesis(tokens, total, total)]


def beam_search(
    next_log_probabilities, beam_size, alpha, n_best, max_length, eos, penalty=gnmt, patience=None
):
    """Beam search over the best 2k candidates; only one for k = 1, which makes it greedy."""
    num_ended = 0
    alive = [((), 0.0)]  # (tokens, log-probability), best first
    finished = []  # Hypothesis, best first
    num_candidates = 1 if beam_size == 1 else 2 * beam_size
    for length in range(1, max_length + 1):
        candidates = [
            (total + log_probability, beam, token)
            for beam, (tokens, total) in enumerate(alive)
            for token, log_probability in enumerate(next_log_probabilities(tokens))
        ]
        candidates = [candidate for candidate in candidates if candidate[0] > MINUS_INFINITY]
        candidates.sort(key=lambda candidate: (-candidate[0], candidate[1], candidate[2]))
        still_alive = []
        for rank, (total, beam, token) in enumerate(candidates[:num_candidates]):
            tokens = (*alive[beam][0], token)
            if token == eos:
                num_ended += rank < beam_size
                finished.append(Hypothesis(tokens, total / penalty(length, alpha), total))
            else:
                still_alive.append((tokens, total))
        alive = still_alive[:beam_size]
        finished.sort(key=lambda hypothesis: -hypothesis.score)
        if not alive:
            break
        threshold = finished[n_best - 1].score if len(finished) >= n_best else MINUS_INFINITY
        if alive[0][1] / penalty(max_length, alpha) <= threshold:
            break
        if patience is not None and num_ended >= max(patience * beam_size, n_best):
            break
    unfinished = [
        Hypothesis(tokens, total / penalty(len(tokens), alpha), total) for tokens, total in alive
    ]
    return (finished[:n_best] + unfinished)[:n_best]


def exhaustive_search(
    next_log_probabilities, vocabulary, alpha, n_best, max_length, eos, penalty=gnmt
):
    """The best of all sequences that end in EOS; then of those that ran to the maximum length."""
    others = [token for token in range(vocabulary) if token != eos]

    def hypothesis(tokens):
        total = sum(next_log_probabilities(tokens[:i])[token] for i, token in enumerate(tokens))
        return Hypothesis(tokens, total / penalty(len(tokens), alpha), total)

    finished = [
        hypothesis((*prefix, eos))
        for length in range(max_length)
        for prefix in itertools.product(others, repeat=length)
    ]
    unfinished = [hypothesis(tokens) for tokens in itertools.product(others, repeat=max_length)]
    ranked = []
    for group in (finished, unfinished):
        group = [one for one in group if one.log_probability > MINUS_INFINITY]
        ranked += sorted(group, key=lambda one: -one.score)
    return ranked[:n_best]


def log_softmax(row):
    largest = max(row)
    total = math.log(sum(math.exp(value - largest) for value in row)) + largest
    return [value - total for value in row]
