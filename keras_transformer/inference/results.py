"""Results of a `Translator`: hypotheses with scores, and scores of given translations."""

from typing import NamedTuple


class Hypothesis(NamedTuple):
    """A translation that a search found.

    Attributes:
        text: the translation.
        score: the value that the search ranks by: the log-probability, which a beam search divides
            by its length penalty.
        log_probability: natural logarithm of the probability, with EOS.
        num_tokens: number of tokens, with EOS.
        tokens: the ids; EOS is the last one unless the hypothesis reached its maximum length.

    Example:

    >>> from keras_transformer.inference.translator import Hypothesis
    >>> answer = Hypothesis("um halb acht", score=-0.4, log_probability=-0.5, num_tokens=4)
    >>> answer.text
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
        log_probability: natural logarithm of the probability, with EOS, without length penalty.
        num_tokens: number of tokens, with EOS.
        tokens: the ids, with EOS.
        token_log_probabilities: natural logarithm of the probability of each token, given the
            tokens before it; they sum to `log_probability`.

    Example:

    >>> from keras_transformer.inference.translator import Score
    >>> score = Score(log_probability=-4.0, num_tokens=4)
    >>> float(np.exp(-score.log_probability / score.num_tokens))  # The perplexity.
    2.718281828459045
    """

    log_probability: float
    num_tokens: int
    tokens: tuple[int, ...] = ()
    token_log_probabilities: tuple[float, ...] = ()


def to_hypotheses(result, tokenizer) -> list[list[Hypothesis]]:
    """Returns the hypotheses of each sentence of a `SearchResult`, best first."""
    answers = []
    for tokens, *numbers in zip(*result, strict=True):
        texts = tokenizer.decode_batch(tokens)
        hypotheses = [
            Hypothesis(text, float(score), float(log_probability), int(length), tuple(ids[:length]))
            for text, ids, score, log_probability, length in zip(
                texts, tokens.tolist(), *numbers, strict=True
            )
        ]
        # A tiny vocabulary may have fewer sequences than the beam.
        real = [answer for answer in hypotheses if answer.log_probability > float("-inf")]
        answers.append(real or hypotheses[:1])
    return answers
