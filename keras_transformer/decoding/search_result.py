"""Result of a search."""

from typing import Any, NamedTuple


class SearchResult(NamedTuple):
    """Hypotheses of a batch of sentences, best first (samples: in the order drawn).

    `n` is 1 for a greedy search, `n_best` for a beam search, `num_samples` for sampling. If a
    sentence has fewer than `n` hypotheses, the other places have a score of minus infinity, length
    0 and only padding.

    Attributes:
        tokens: int32 `[batch, n, max_length]`, without BOS, EOS kept, padding after it.
        scores: float32 `[batch, n]`, by which the hypotheses are ranked (beam search:
            log-probability over length penalty; otherwise the log-probability).
        log_probabilities: float32 `[batch, n]`, the plain sum over the tokens, EOS included.
        lengths: int32 `[batch, n]`, number of tokens, EOS included.

    Scores are float64 where the state of the search holds float64 tensors.

    Example:

    >>> from keras_transformer.decoding import SearchResult
    >>> result = SearchResult(tokens=[[[7, 3]]], scores=[[-0.5]], log_probabilities=[[-0.5]],
    ...                       lengths=[[2]])
    >>> result.lengths
    [[2]]
    """

    tokens: Any
    scores: Any
    log_probabilities: Any
    lengths: Any
