"""`Search`, the base class of searches: the step that they call, their loop and their result."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import keras
from keras import ops

from keras_transformer.checks import check_argument, check_positive_integer
from keras_transformer.decoding.constraints import (
    CONSTRAINTS,
    Constraint,
    SavedConstraint,
    constrain,
    is_constraint,
)
from keras_transformer.layers.caches import take_entries
from keras_transformer.layers.tensors import Tensor, check_shape
from keras_transformer.settings.base import Settings, check_member

# Maximum number of steps between two calls of `keep_sentences`, which merges growing caches.
_STEPS_IN_A_ROUND = 32
# Settings that a dict omits if they are not set, so that older versions can read it.
_OMITTED_IF_UNSET = ("constraints", "patience")


class Step(Protocol):
    """One step of a decoder, for all hypotheses of a batch: `step(tokens, parents, state)`.

    A batch has `width` hypotheses of each sentence, those of the first sentence first. With
    `keep_sentences`, batches get smaller during a search, so `state` must hold everything that
    belongs to a sentence.

    Args:
        tokens: int32 `[batch * width]`, the last token of each hypothesis; BOS in the first call.
        parents: int32 `[batch * width]` or None. Hypothesis h of this call continues hypothesis
            `parents[h]` of the call before: the step must reorder its caches accordingly. None
            means no change.
        state: Nest of tensors (dict, tuple, list) whose shapes and dtypes a step does not change.

    Returns:
        `(logits, state)`: float `[batch * width, vocabulary]`, and the new state. The vocabulary
        size is static. On TensorFlow, greedy and beam search without constraints also accept a
        dynamic size, of at least 512.

    Example:

    >>> from keras_transformer.decoding import GreedySearch
    >>> def step(tokens, parents, state):  # Counts down from the state, then ends with EOS, 3.
    ...     return ops.one_hot(ops.maximum(state, 3), 10), state - 1
    >>> result = GreedySearch()(step, ops.array([6, 4]), max_lengths=[9, 9], max_length=5)
    >>> ops.convert_to_numpy(result.tokens).tolist()
    [[[6, 5, 4, 3, 0]], [[4, 3, 0, 0, 0]]]
    """

    def __call__(self, tokens: Any, parents: Any, state: Any) -> tuple[Any, Any]: ...


class SearchResult(NamedTuple):
    """Hypotheses of a batch of sentences, best first (samples: in the order drawn).

    `n` is 1 for a greedy search, `n_best` for a beam search, `num_samples` for sampling. If a
    sentence has fewer than `n` hypotheses, the others are empty: their score is minus infinity,
    their length 0, and their tokens are padding. Scores are float64 where the state of the search
    holds float64 tensors.

    Attributes:
        tokens: int32 `[batch, n, max_length]`, without BOS, EOS kept, padding after it.
        scores: float32 `[batch, n]`, by which the hypotheses are ranked.
        log_probabilities: float32 `[batch, n]`, the plain sum over the tokens, EOS included.
        lengths: int32 `[batch, n]`, number of tokens, EOS included.

    Example:

    >>> keras_transformer.decoding.SearchResult([[[7, 3]]], [[-0.5]], [[-0.5]], [[2]]).lengths
    [[2]]
    """

    tokens: Any
    scores: Any
    log_probabilities: Any
    lengths: Any


def log_sum_exp(logits, largest, largest_ids=None):
    """Returns `logsumexp(logits)` over the vocabulary, `[hypotheses, 1]`.

    `largest` are the maxima of the logits, `[hypotheses, 1]`; `largest_ids` are their ids if known.
    """
    # The largest probability is exp(largest - log_sum_exp). A softmax is one operation on
    # TensorFlow, where differences, exponentials and sums are three passes over all logits.
    probabilities = ops.softmax(logits, axis=-1)
    if largest_ids is None:
        return largest - ops.log(ops.max(probabilities, axis=-1, keepdims=True))
    hypotheses, vocabulary = ops.shape(logits)
    first = vocabulary * ops.expand_dims(ops.arange(hypotheses, dtype="int32"), 1)
    # [hypotheses, vocabulary] -> [hypotheses * vocabulary]
    return largest - ops.log(ops.take(ops.reshape(probabilities, (-1,)), first + largest_ids))


class SearchInputs(NamedTuple):
    """Checked inputs of one search; `Search.__call__` describes the fields without a comment."""

    step: Step
    state: Any
    limits: Tensor  # int32 [batch]: each sentence's maximum length, at most `max_length`
    max_length: Any
    bos_id: int
    eos_id: int
    pad_id: int
    keep_sentences: Callable | None
    dtype: str  # The dtype of the scores.
    normalizer: Callable = log_sum_exp  # Logits minus its result are log-probabilities.
    is_constrained: bool = False  # If so, a hypothesis may have no allowed next token.

    def call_step(self, tokens, parents, state):
        """Returns the step's logits in `dtype`, and its state with the shapes of the old one."""
        logits, new_state = self.step(tokens, parents, state)
        logits = ops.cast(logits, self.dtype)
        if keras.config.backend() == "tensorflow":
            import tensorflow as tf

            # The graph optimizer moves a cast past a change of shape, so that every reader of
            # another shape would cast again. It moves nothing past `ensure_shape`.
            logits = tf.ensure_shape(logits, logits.shape)
        return logits, keep_shapes(new_state, state)


class Search(Settings, family="search"):
    """Base class of searches: frozen dataclasses with `constraints`, `width`, `_search(inputs)`."""

    constraints: tuple
    is_random: ClassVar[bool] = False  # whether the answers depend on a `seed`

    def _search(self, inputs: SearchInputs) -> SearchResult:
        raise NotImplementedError

    @property
    def width(self) -> int:
        """Number of hypotheses of a sentence in the step's batch."""
        return 1

    def __call__(
        self,
        step: Step,
        state: Any,
        max_lengths: Tensor,
        max_length: Any,
        bos_id: int = 2,
        eos_id: int = 3,
        pad_id: int = 0,
        constraints: Sequence[Constraint] = (),
        keep_sentences: Callable | None = None,
    ) -> SearchResult:
        """Searches for continuations of BOS.

        Args:
            step: A `Step`. Searches other than `BeamSearch` call it with `parents=None`.
            state: State of the step before the first call, of `batch * width` hypotheses.
            max_lengths: int32 `[batch]`, maximum number of tokens of each sentence, EOS included.
            max_length: Length of the result, an int or an int32 scalar; a static int where shapes
                must be static (JAX). It limits `max_lengths`.
            bos_id, eos_id, pad_id: Ids that begin, end and fill a hypothesis.
            constraints: Further constraints of this call, such as a `ForcedPrefix`.
            keep_sentences: `keep_sentences(state, sentences) -> state`, such as
                `Transformer.keep_sentences`, returns the step's state for `sentences`, int32
                `[kept]`. It is called when half of the sentences or more are finished, and after 32
                steps without a call. It is not used on JAX, and must be None under XLA. None keeps
                all sentences to the end.

        Returns:
            A `SearchResult`.
        """
        max_lengths = ops.cast(ops.convert_to_tensor(max_lengths), "int32")
        check_shape("max_lengths", max_lengths, "[batch]")
        if isinstance(max_length, int):
            check_positive_integer("max_length", max_length)
        constraints = tuple(constraints)
        is_allowed = all(map(is_constraint, constraints))
        check_argument(is_allowed, "constraints", CONSTRAINTS.words, constraints)
        limits, ids = ops.minimum(max_lengths, max_length), (bos_id, eos_id, pad_id)
        leaves = [leaf for leaf in keras.tree.flatten(state) if hasattr(leaf, "dtype")]
        dtypes = [keras.backend.standardize_dtype(leaf.dtype) for leaf in leaves]
        dtype = "float64" if "float64" in dtypes else "float32"
        inputs = SearchInputs(step, state, limits, max_length, *ids, keep_sentences, dtype)
        if constraints := (*self.constraints, *constraints):
            inputs = constrain(inputs, constraints, self.width)
        return self._search(inputs)

    def to_dict(self) -> dict[str, Any]:
        for constraint in self.constraints:
            check_member(SavedConstraint, constraint)
        values = super().to_dict()
        unset = [name for name in _OMITTED_IF_UNSET if not values.get(name)]
        return {name: value for name, value in values.items() if name not in unset}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        constraints = map(SavedConstraint.from_dict, values.get("constraints", ()))
        return super().from_dict({**values, "constraints": tuple(constraints)})


def search_to_dict(search: Search) -> dict:
    """Returns the settings of a search as a dict that JSON can hold, with its `"name"`.

    Args:
        search: A `BeamSearch`, `GreedySearch` or `Sampling`.

    Raises:
        ValueError: If `search` is something else, or a constraint cannot be saved.

    Example:

    >>> from keras_transformer import decoding
    >>> decoding.search_to_dict(decoding.GreedySearch())
    {'name': 'greedy'}
    """
    check_member(Search, search)
    return search.to_dict()


def search_from_dict(settings: Mapping) -> Search:
    """Returns the search that `search_to_dict` described.

    Args:
        settings: A dict with `"name"` and the arguments that differ from the defaults.

    Raises:
        ValueError: If a name or setting is unknown, or the search refuses a value.

    Example:

    >>> keras_transformer.decoding.search_from_dict({"name": "beam", "beam_size": 5}).beam_size
    5
    """
    return Search.from_dict(settings)


def keep_shapes(new, old):
    """Returns the tensors of `new` with the static shapes of `old`, as `while_loop` requires.

    On TensorFlow, a gather with dynamic indices forgets dimensions that were known before.
    """

    def keep_shape(new, old):
        new = ops.convert_to_tensor(new)
        if new.dtype != old.dtype:
            rule = "A step must return its state in the dtypes it was given"
            raise ValueError(f"{rule}. Received: dtype={new.dtype} where it was {old.dtype}")
        sizes = zip(new.shape, old.shape, strict=True)
        if any(size is None and before is not None for size, before in sizes):
            # Only on TensorFlow. A reshape would compute the other sizes at every step.
            new.set_shape(old.shape)
        return new

    return keras.tree.map_structure(keep_shape, new, old)


def extend_until_done(extend, hypotheses, state, keep_sentences):
    """Calls `extend(hypotheses, state)`, which returns both, until all hypotheses are done.

    The hypotheses are a named tuple of scalars and of tensors with the leading axis `batch`. Their
    `is_done`, bool `[batch]` or `[batch, width]`, marks final answers, which `extend` must keep;
    their `index` counts the steps. `keep_sentences` is called after each round of steps.
    """
    # Shapes are static on JAX.
    if keep_sentences is None or keras.config.backend() == "jax":
        return ops.while_loop(_is_any_active, extend, (hypotheses, state))[0]

    # Two loops are faster than conditions inside the step, which slow down every step. `active` are
    # the hypotheses of `sentences`; `answers` has those of all sentences.
    def extend_for_a_round(active, state, sentences, answers):
        end = active.index + _STEPS_IN_A_ROUND

        def goes_on(active, _):
            # If at most half of the sentences go on, copying them soon pays off.
            is_done = _is_done(active)
            are_most_active = 2 * _num_active(is_done) > ops.shape(is_done)[0]
            return ops.logical_and(are_most_active, active.index < end)

        active, state = ops.while_loop(goes_on, extend, (active, state))
        indices = ops.expand_dims(sentences, 1)

        def update(old, new):
            return ops.scatter_update(old, indices, new) if len(old.shape) else new

        answers = keras.tree.map_structure(update, answers, active)
        kept = _sentences_to_keep(_is_done(active))
        state = keep_shapes(keep_sentences(state, kept), state)
        return take_entries(active, kept), state, take_entries(sentences, kept), answers

    sentences = ops.arange(ops.shape(hypotheses.is_done)[0], dtype="int32")
    variables = (hypotheses, state, sentences, hypotheses)
    *_, answers = _shrinking_loop(_is_any_active, extend_for_a_round, variables)
    return keep_shapes(answers, hypotheses)


def _is_done(hypotheses):
    """Returns whether all hypotheses of a sentence are final, bool `[batch]`."""
    is_done = hypotheses.is_done
    return is_done if len(is_done.shape) == 1 else ops.all(is_done, axis=1)


def _is_any_active(hypotheses, *_):
    return ops.logical_not(ops.all(hypotheses.is_done))


def _num_active(is_done):
    return ops.sum(ops.cast(ops.logical_not(is_done), "int32"))


def _sentences_to_keep(is_done):
    """Returns the indices of the sentences that go on, and of others up to a power of two.

    TensorFlow's oneDNN compiles a kernel for each shape, so there should be few.
    """
    powers = ops.array([2**exponent for exponent in range(31)], dtype="int32")
    num_kept = ops.min(ops.where(powers >= _num_active(is_done), powers, 2**30))
    order = ops.argsort(ops.cast(is_done, "int32"))  # Those that go on come first.
    return ops.cast(order[:num_kept], "int32")


def _shrinking_loop(condition, body, variables):
    """`ops.while_loop` over variables whose leading axis gets shorter."""
    if keras.config.backend() != "tensorflow":
        return ops.while_loop(condition, body, variables)
    import tensorflow as tf

    shapes = keras.tree.map_structure(
        lambda leaf: tf.TensorShape([None, *leaf.shape[1:]] if len(leaf.shape) else []), variables
    )
    return tf.while_loop(condition, body, variables, shape_invariants=shapes)
