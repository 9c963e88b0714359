"""Constraints in plain Python: a rule turns the log-probabilities that follow a prefix into others.

Written from what the constraints promise; nothing of the package is imported. A rule is
`rule(prefix, row, model_row)`: a tuple of ids, a list of log-probabilities after the rules before,
and the model's own.
"""

MINUS_INFINITY = float("-inf")


def constrained(next_log_probabilities, *rules):
    """The model that a search sees which follows the rules."""

    def of_prefix(prefix):
        model_row = list(next_log_probabilities(prefix))
        row = model_row
        for rule in rules:
            row = rule(prefix, row, model_row)
        return row

    return of_prefix


def _without(row, is_out):
    return [MINUS_INFINITY if is_out(token) else value for token, value in enumerate(row)]


def minimum_length(fewest, max_length, eos):
    def rule(prefix, row, model_row):
        is_early = len(prefix) + 1 < min(fewest, max_length)
        return _without(row, lambda token: is_early and token == eos)

    return rule


def no_repeat_ngrams(size):
    def rule(prefix, row, model_row):
        ngrams = {prefix[i : i + size] for i in range(len(prefix) - size + 1)}
        last = prefix[len(prefix) - size + 1 :] if size > 1 else ()
        return _without(row, lambda token: (*last, token) in ngrams)

    return rule


def repetition_penalty(penalty):
    def rule(prefix, row, model_row):
        return [
            value * penalty if token in prefix and value < 0 else value
            for token, value in enumerate(row)
        ]

    return rule


def suppress_tokens(ids):
    return lambda prefix, row, model_row: _without(row, lambda token: token in ids)


def forced_prefix(forced, num_given=0):
    def rule(prefix, row, model_row):
        if len(prefix) >= len(forced):
            return row
        if len(prefix) < num_given:
            model_row = [0.0] * len(model_row)
        return _without(model_row, lambda token: token != forced[len(prefix)])

    return rule


def budget(total):
    """The ids add up to at most a total."""
    return lambda prefix, row, model_row: _without(row, lambda token: sum(prefix) + token > total)
