"""Greedy search, and the loop that it shares with sampling."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

from keras import ops

from keras_transformer.decoding.search import Search, SearchResult
from keras_transformer.decoding.search_inputs import SearchInputs
from keras_transformer.decoding.step import call_step, keep_shapes, run_search
from keras_transformer.decoding.top_k import top_k


@dataclasses.dataclass(frozen=True)
class GreedySearch(Search, name="greedy"):
    """Takes the most probable token at each step, until EOS or the sentence's maximum length.

    Ties go to the lower id. The score is the log-probability (a length penalty with
    alpha 0). `BeamSearch(beam_size=1)` finds the same tokens, with a normalised score.

    Args:
        constraints: Sequence of `Constraint`, applied in this order.

    Raises:
        ValueError: If one of them is not a constraint.

    Example:

    >>> from keras_transformer.decoding import GreedySearch
    >>> table = ops.array([[0.0, 0, 0, 0, 0], [0, 0, 0, 0, 0], [0, 0, 0, 0, 9], [0, 0, 0, 0, 0],
    ...                    [0, 0, 0, 9, 0]])  # BOS 2 is followed by 4, 4 by EOS 3
    >>> step = lambda tokens, rows, state: (ops.take(table, tokens, axis=0), state)
    >>> result = GreedySearch()(step, (), max_lengths=[4], max_length=4)
    >>> ops.convert_to_numpy(result.tokens).tolist()
    [[[4, 3, 0, 0]]]
    """

    constraints: tuple = ()

    def _search(self, inputs):
        return decode_rows(inputs, _most_probable, self.width)


def _most_probable(logits, _index, normalizer):
    largest, tokens = top_k(logits, 1)
    return tokens[:, 0], (largest - normalizer(logits, largest, tokens))[:, 0]


class RowsState(NamedTuple):
    """State of a search whose rows do not depend on each other."""

    index: Any  # int32 []: tokens generated so far
    limits: Any  # int32 [batch, 1]: the sentence's maximum length
    is_done: Any  # bool [batch, width]: the row has its EOS, or its maximum length
    last_tokens: Any  # int32 [batch, width]: next input of the step
    tokens: Any  # int32 [batch, width, max_length]: padding from `lengths` on
    log_probabilities: Any  # float [batch, width]: sum over the tokens so far
    lengths: Any  # int32 [batch, width]


def decode_rows(inputs: SearchInputs, choose: Callable, width: int) -> SearchResult:
    """Extends each of `width` rows of a sentence by one chosen token in each step until it is done.

    `choose(logits, index, normalizer) -> (tokens, log_probabilities)` maps float
    `[rows, vocabulary]`, the int32 number of the step and `inputs.normalizer` to int32 `[rows]` and
    float `[rows]`.
    """
    max_length, pad_id, dtype = inputs.max_length, inputs.pad_id, inputs.dtype

    def extend(rows, model_state):
        last_tokens = ops.reshape(rows.last_tokens, (-1,))
        logits, model_state = call_step(inputs.step, last_tokens, None, model_state, dtype)
        choice = choose(logits, rows.index, inputs.normalizer)
        chosen, log_probabilities = (ops.reshape(of_rows, (-1, width)) for of_rows in choice)
        chosen = ops.where(rows.is_done, pad_id, ops.cast(chosen, "int32"))
        is_here = ops.equal(ops.arange(max_length, dtype="int32"), rows.index)  # [max_length]
        length = rows.index + 1
        is_last = ops.logical_or(ops.equal(chosen, inputs.eos_id), length >= rows.limits)
        new_rows = rows._replace(
            index=length,
            is_done=ops.logical_or(rows.is_done, is_last),
            last_tokens=chosen,
            tokens=ops.where(is_here, ops.expand_dims(chosen, -1), rows.tokens),
            log_probabilities=ops.where(
                rows.is_done, rows.log_probabilities, rows.log_probabilities + log_probabilities
            ),
            lengths=ops.where(rows.is_done, rows.lengths, length),
        )
        if inputs.is_constrained:
            # Rows that no token could extend become empty places, see `SearchResult`.
            is_dead = ops.equal(new_rows.log_probabilities, float("-inf"))
            new_rows = new_rows._replace(
                is_done=ops.logical_or(new_rows.is_done, is_dead),
                tokens=ops.where(ops.expand_dims(is_dead, -1), pad_id, new_rows.tokens),
                lengths=ops.where(is_dead, 0, new_rows.lengths),
            )
        return keep_shapes(new_rows, rows), model_state

    shape = (ops.shape(inputs.limits)[0], width)
    limits = ops.expand_dims(inputs.limits, 1)
    start = RowsState(
        index=ops.convert_to_tensor(0, dtype="int32"),
        limits=limits,
        is_done=ops.broadcast_to(limits < 1, shape),
        last_tokens=ops.full(shape, inputs.bos_id, dtype="int32"),
        tokens=ops.full((*shape, max_length), pad_id, dtype="int32"),
        log_probabilities=ops.zeros(shape, dtype=dtype),
        lengths=ops.zeros(shape, dtype="int32"),
    )
    rows = run_search(extend, start, inputs.state, inputs.keep_sentences)
    scores = rows.log_probabilities
    return SearchResult(rows.tokens, scores, scores, rows.lengths)
