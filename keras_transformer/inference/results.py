"""What a translator answers: hypotheses with their scores, and scores of given translations."""

from typing import NamedTuple


class Hypothesis(NamedTuple):
    """A translation that a search found.

    Attributes:
        text: `str`.
        score: what the search ranks by: a beam search divides the log-probability by its length
            penalty, the other searches leave it as it is.
        log_probability: natural logarithm of the probability, EOS counted.
        num_tokens: number of tokens, EOS counted.
        tokens: the ids, EOS included if the hypothesis ended in it rather than at its maximum
            length.

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
    """How probable a model finds a given translation.

    Attributes:
        log_probability: natural logarithm of the probability, EOS counted, no length penalty.
        num_tokens: number of tokens, EOS counted.
        tokens: the ids, EOS included.
        token_log_probabilities: natural logarithm of the probability of each token, given those
            before it; they sum to `log_probability`.

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
    """Turns a search's result into text.

    Args:
        result: `SearchResult` of NumPy arrays, `[batch, n, ...]`.
        tokenizer: the target's tokenizer.

    Returns:
        A list of hypotheses for each sentence, best first.
    """
    answers = []
    for tokens, *numbers in zip(*result, strict=True):
        texts = tokenizer.decode_batch(tokens)
        hypotheses = [
            Hypothesis(text, float(score), float(log_probability), int(length), tuple(ids))
            for text, ids, score, log_probability, length in zip(
                texts, tokens.tolist(), *numbers, strict=True
            )
        ]
        hypotheses = [
            answer._replace(tokens=answer.tokens[: answer.num_tokens]) for answer in hypotheses
        ]
        # A tiny vocabulary may have fewer sequences than were asked for.
        real = [answer for answer in hypotheses if answer.log_probability > float("-inf")]
        answers.append(real or hypotheses[:1])
    return answers
