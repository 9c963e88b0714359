"""A penalty for tokens that a hypothesis has already."""

import dataclasses

from keras import ops

from keras_transformer.decoding.constraints.constraint import Generated
from keras_transformer.decoding.constraints.saved_constraint import SavedConstraint, token_sets
from keras_transformer.layers.checks import checked_number
from keras_transformer.layers.dtypes import Tensor


@dataclasses.dataclass(frozen=True)
class RepetitionPenalty(SavedConstraint, name="repetition_penalty"):
    """Multiplies the log-probability of each token that the hypothesis has already.

    CTRL divides a positive logit and multiplies a negative one. Log-probabilities, which are
    penalised here as in the beam search of Hugging Face transformers, are never positive; raw
    logits, which CTranslate2 penalises, give other results. Hypotheses are ranked by their
    log-probabilities after the penalty; `Translator.score` gives those of the model.

    Args:
        penalty: From 1e-20 to 1e20; 1 changes nothing, 1.2 is usual, less than 1 favours
            repetition.

    Raises:
        ValueError: If `penalty` is not such a number.

    Example:

    >>> from keras_transformer.decoding import GreedySearch, RepetitionPenalty
    >>> table = ops.log(ops.array([[0.01, 0.01, 0.01, 0.01, 0.51, 0.45]]))
    >>> step = lambda tokens, rows, state: (table, state)
    >>> search = GreedySearch(constraints=[RepetitionPenalty(1.2)])
    >>> ops.convert_to_numpy(search(step, (), max_lengths=[3], max_length=3).tokens).tolist()
    [[[4, 5, 4]]]

    Reference: Keskar et al. (2019), section 4.1, https://arxiv.org/abs/1909.05858.
    """

    penalty: float

    def __post_init__(self) -> None:
        # Sums of log-probabilities that are multiplied by it stay finite in float32.
        object.__setattr__(self, "penalty", checked_number("penalty", self.penalty, 1e-20, 1e20))

    def __call__(
        self, state: tuple, log_probabilities: Tensor, generated: Generated
    ) -> tuple[tuple, Tensor]:
        tokens = generated.tokens
        is_there = ops.arange(ops.shape(tokens)[1], dtype="int32") < generated.length
        is_there = ops.broadcast_to(is_there, ops.shape(tokens))
        has_come = token_sets(tokens, is_there, log_probabilities.shape[-1])
        return state, ops.where(has_come, log_probabilities * self.penalty, log_probabilities)
