"""Inputs of a search, as one object; with constraints, the step follows them."""

from collections.abc import Callable
from typing import Any, NamedTuple, Self

from keras import ops

from keras_transformer.decoding.constraints.constraint import Constraint, Generated
from keras_transformer.decoding.step import Step, call_step, log_sum_exp
from keras_transformer.layers.caches import take_rows
from keras_transformer.layers.checks import check_positive_integer, check_rank
from keras_transformer.layers.dtypes import Tensor


class SearchInputs(NamedTuple):
    """Inputs of one search, checked; further ones are described in `Search.__call__`."""

    step: Step
    state: Any
    limits: Tensor  # int32 [batch]: each sentence's maximum length, at most `max_length`
    max_length: Any
    bos_id: int
    eos_id: int
    pad_id: int
    keep_sentences: Callable | None
    dtype: str  # of the scores
    normalizer: Callable = log_sum_exp  # by how much the step's logits exceed log-probabilities
    is_constrained: bool = False  # then a hypothesis may have no allowed next token

    def constrained(self, constraints: tuple[Constraint, ...], width: int) -> Self:
        """Returns the inputs with a step, of `width` rows a sentence, that follows constraints."""
        if not constraints:
            return self
        max_length, max_lengths = self.max_length, ops.repeat(self.limits, width)  # [rows]
        tokens = ops.full((ops.shape(max_lengths)[0], max_length), self.pad_id, dtype="int32")
        start = {
            "model": self.state,
            "constraints": tuple(one.start(self.limits, width) for one in constraints),
            "max_lengths": max_lengths,
            "tokens": tokens,
            "length": ops.convert_to_tensor(0, dtype="int32"),
        }

        def constrained_step(last_tokens, rows, state):
            logits, model_state = call_step(
                self.step, last_tokens, rows, state["model"], self.dtype
            )
            largest = ops.max(logits, axis=-1, keepdims=True)
            log_probabilities = logits - log_sum_exp(logits, largest)  # [rows, vocabulary]
            tokens, states, length = state["tokens"], state["constraints"], state["length"]
            if rows is not None:
                tokens, states = take_rows((tokens, states), rows)
            # The last tokens of the first call are BOS, which has no place.
            is_last = ops.equal(ops.arange(max_length, dtype="int32"), length - 1)  # [max_length]
            tokens = ops.where(is_last, ops.expand_dims(last_tokens, -1), tokens)
            generated = Generated(
                tokens, last_tokens, length, state["max_lengths"], log_probabilities, self.eos_id
            )
            new_states = []
            for constraint, own_state in zip(constraints, states, strict=True):
                own_state, log_probabilities = constraint(own_state, log_probabilities, generated)
                new_states.append(own_state)
            return log_probabilities, {
                **state,
                "model": model_state,
                "constraints": tuple(new_states),
                "tokens": tokens,
                "length": length + 1,
            }

        def keep_sentences_and_rows(state, sentences):
            rows = width * ops.expand_dims(sentences, 1) + ops.arange(width, dtype="int32")
            rows = ops.reshape(rows, (-1,))
            of_rows = {name: state[name] for name in ("constraints", "max_lengths", "tokens")}
            model_state = self.keep_sentences(state["model"], sentences)
            return {**state, "model": model_state, **take_rows(of_rows, rows)}

        return self._replace(
            step=constrained_step,
            state=start,
            keep_sentences=self.keep_sentences and keep_sentences_and_rows,
            is_constrained=True,
            normalizer=lambda log_probabilities, largest, places=None: ops.zeros_like(largest),
        )


def checked_limits(max_lengths: Tensor, max_length: Any) -> Tensor:
    """Returns each sentence's own maximum, int32 `[batch]`, at most `max_length`."""
    max_lengths = ops.cast(ops.convert_to_tensor(max_lengths), "int32")
    check_rank("max_lengths", max_lengths, "[batch]")
    if isinstance(max_length, int):
        check_positive_integer("max_length", max_length)
    return ops.minimum(max_lengths, max_length)
