"""A step function that follows constraints, for the searches to call in place of the model's."""

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
from keras import ops

from keras_transformer.decoding.constraints.constraint import Generated
from keras_transformer.decoding.step import Step, call_step, log_sum_exp, score_dtype


class Constrained(NamedTuple):
    """What a search works with.

    Attributes:
        step: a `Step`.
        state: its state before the first call.
        keep_sentences: as of `BeamSearch`, for this state; or None.
        normalizer: `normalizer(logits, largest, places=None)` is by how much the logits that the
            step gives exceed log-probabilities, see `log_sum_exp`.
    """

    step: Step
    state: Any
    keep_sentences: Callable | None
    normalizer: Callable


def constrain(step, state, keep_sentences, constraints, limits, width, max_length, eos_id, pad_id):
    """Wraps a step and its state, so that a search need not know of constraints.

    Args:
        step, state, keep_sentences: as of `BeamSearch`.
        constraints: tuple of `Constraint`; without any, all come back as they are.
        limits: int32 `[batch]`, each sentence's maximum length.
        width: rows a sentence.
        max_length, eos_id, pad_id: as of `BeamSearch`.

    Returns:
        `Constrained`.
    """
    if not constraints:
        return Constrained(step, state, keep_sentences, log_sum_exp)
    dtype = score_dtype(state)
    max_lengths = ops.repeat(limits, width)  # [rows]
    start = {
        "model": state,
        "constraints": tuple(constraint.start(limits, width) for constraint in constraints),
        "max_lengths": max_lengths,
        "tokens": ops.full((ops.shape(max_lengths)[0], max_length), pad_id, dtype="int32"),
        "length": ops.convert_to_tensor(0, dtype="int32"),
    }

    def constrained_step(last_tokens, rows, state):
        logits, model_state = call_step(step, last_tokens, rows, state["model"], dtype)
        largest = ops.max(logits, axis=-1, keepdims=True)
        log_probabilities = logits - log_sum_exp(logits, largest)  # [rows, vocabulary]
        tokens, states, length = state["tokens"], state["constraints"], state["length"]
        if rows is not None:
            tokens, states = _take((tokens, states), rows)
        # The last tokens of the first call are BOS, which has no place.
        is_last = ops.equal(ops.arange(max_length, dtype="int32"), length - 1)  # [max_length]
        tokens = ops.where(is_last, ops.expand_dims(last_tokens, -1), tokens)
        max_lengths = state["max_lengths"]
        generated = Generated(tokens, last_tokens, length, max_lengths, log_probabilities, eos_id)
        new_states = []
        for constraint, own_state in zip(constraints, states, strict=True):
            own_state, log_probabilities = constraint(own_state, log_probabilities, generated)
            new_states.append(own_state)
        return log_probabilities, {
            "model": model_state,
            "constraints": tuple(new_states),
            "max_lengths": max_lengths,
            "tokens": tokens,
            "length": length + 1,
        }

    def keep_sentences_and_rows(state, sentences):
        rows = width * ops.expand_dims(sentences, 1) + ops.arange(width, dtype="int32")
        rows = ops.reshape(rows, (-1,))
        of_rows = {name: state[name] for name in ("constraints", "max_lengths", "tokens")}
        model_state = keep_sentences(state["model"], sentences)
        return {**state, "model": model_state, **_take(of_rows, rows)}

    keep = None if keep_sentences is None else keep_sentences_and_rows
    return Constrained(constrained_step, start, keep, _already_normalized)


def _take(tensors, rows):
    return keras.tree.map_structure(lambda tensor: ops.take(tensor, rows, axis=0), tensors)


def _already_normalized(log_probabilities, largest, places=None):
    del log_probabilities, places
    return ops.zeros_like(largest)
