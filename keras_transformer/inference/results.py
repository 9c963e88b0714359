"""Results of a pipeline: `Hypothesis`, `Score` and `Alignment`."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Hypothesis(NamedTuple):
    """An answer that a search found, such as a translation.

    Attributes:
        text: The answer.
        score: The log-probability, in a beam search divided by its length penalty.
        log_probability: Natural logarithm of the probability, with EOS.
        num_tokens: Number of tokens, with EOS.
        tokens: The ids; EOS is the last one unless the hypothesis reached its maximum length.

    Example:

    >>> from keras_transformer.inference import Hypothesis
    >>> Hypothesis("um halb acht", score=-0.4, log_probability=-0.5, num_tokens=4).text
    'um halb acht'
    """

    text: str
    score: float
    log_probability: float
    num_tokens: int
    tokens: tuple[int, ...] = ()


class Score(NamedTuple):
    """The probability of a given translation.

    Attributes:
        log_probability: Natural logarithm of the probability, with EOS, without length penalty.
        num_tokens: Number of tokens, with EOS.
        tokens: The ids, with EOS.
        token_log_probabilities: Those of each token given the tokens before it; 0 for the language
            that the translation begins with, which is given.

    Example:

    >>> from keras_transformer.inference import Score
    >>> score = Score(log_probability=-4.0, num_tokens=4)
    >>> float(np.exp(-score.log_probability / score.num_tokens))  # The perplexity.
    2.718281828459045
    """

    log_probability: float
    num_tokens: int
    tokens: tuple[int, ...] = ()
    token_log_probabilities: tuple[float, ...] = ()


class Alignment(NamedTuple):
    """The word alignment of a source and its translation, whose words are split at white space.

    Attributes:
        pairs: `(source word, target word)` as sorted indices from 0. Each target word with subwords
            has one pair, unless the source has no subwords.
        attention: float `[target words, source words]`: the sum over the subwords of a source word,
            the mean over those of a target word. EOS receives the rest.

    Example:

    >>> from keras_transformer.inference import Alignment
    >>> alignment = Alignment(((0, 0), (2, 1)), np.array([[0.8, 0.1, 0.0], [0.1, 0.2, 0.6]]))
    >>> alignment.pharaoh()
    '0-0 2-1'
    """

    pairs: tuple[tuple[int, int], ...]
    attention: np.ndarray

    @classmethod
    def of(
        cls, attention: np.ndarray, source_words: Sequence[int], target_words: Sequence[int]
    ) -> "Alignment":
        """Returns the alignment of words whose subwords have this attention.

        Args:
            attention: float `[target, source]`, of subwords.
            source_words, target_words: Number of subwords of each word.
        """
        source, target = _membership(source_words), _membership(target_words)
        counts = np.maximum(target.sum(axis=1, keepdims=True), 1)  # [target words, 1]
        between_words = (target / counts) @ attention @ source[:, : attention.shape[1]].T
        pairs = [
            (int(weights.argmax()), target_word)
            for target_word, weights in enumerate(between_words)
            if weights.size and weights.max() > 0.0
        ]
        return cls(tuple(sorted(pairs)), between_words)

    def pharaoh(self) -> str:
        """Returns the pairs as `"0-0 1-2"`, the format of fast_align and Moses."""
        return " ".join(f"{source}-{target}" for source, target in self.pairs)


def _membership(num_subwords):
    """Returns float `[words, subwords]`, with 1 where a subword belongs to a word."""
    return np.repeat(np.eye(len(num_subwords)), num_subwords, axis=1)
