"""A step function that follows constraints."""

from keras import ops

from keras_transformer.decoding.constraints.constraint import Constraint, Generated
from keras_transformer.decoding.search_inputs import SearchInputs
from keras_transformer.decoding.step import call_step, log_sum_exp
from keras_transformer.layers.caches import take_rows


def constrain(
    inputs: SearchInputs, constraints: tuple[Constraint, ...], width: int
) -> SearchInputs:
    """Returns the inputs of a search with a step that follows constraints.

    Args:
        inputs: Inputs of the search.
        constraints: Constraints; without any, `inputs` stay as they are.
        width: Number of rows of a sentence.
    """
    if not constraints:
        return inputs
    max_length = inputs.max_length
    max_lengths = ops.repeat(inputs.limits, width)  # [rows]
    start = {
        "model": inputs.state,
        "constraints": tuple(constraint.start(inputs.limits, width) for constraint in constraints),
        "max_lengths": max_lengths,
        "tokens": ops.full((ops.shape(max_lengths)[0], max_length), inputs.pad_id, dtype="int32"),
        "length": ops.convert_to_tensor(0, dtype="int32"),
    }

    def constrained_step(last_tokens, rows, state):
        model_state, dtype = state["model"], inputs.dtype
        logits, model_state = call_step(inputs.step, last_tokens, rows, model_state, dtype)
        largest = ops.max(logits, axis=-1, keepdims=True)
        log_probabilities = logits - log_sum_exp(logits, largest)  # [rows, vocabulary]
        tokens, states, length = state["tokens"], state["constraints"], state["length"]
        if rows is not None:
            tokens, states = take_rows((tokens, states), rows)
        # The last tokens of the first call are BOS, which has no place.
        is_last = ops.equal(ops.arange(max_length, dtype="int32"), length - 1)  # [max_length]
        tokens = ops.where(is_last, ops.expand_dims(last_tokens, -1), tokens)
        max_lengths = state["max_lengths"]
        generated = Generated(
            tokens, last_tokens, length, max_lengths, log_probabilities, inputs.eos_id
        )
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
        model_state = inputs.keep_sentences(state["model"], sentences)
        return {**state, "model": model_state, **take_rows(of_rows, rows)}

    return inputs._replace(
        step=constrained_step,
        state=start,
        keep_sentences=inputs.keep_sentences and keep_sentences_and_rows,
        is_constrained=True,
        normalizer=lambda log_probabilities, largest, places=None: ops.zeros_like(largest),
    )
