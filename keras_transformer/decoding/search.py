"""`Search`, the base class of searches: the step that they call, their result, and compilation."""

import functools
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
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
from keras_transformer.decoding.loop import keep_shapes, log_sum_exp
from keras_transformer.decoding.terms import requires_terms
from keras_transformer.layers.effective_weights import all_parts
from keras_transformer.layers.tensors import Tensor, check_shape
from keras_transformer.settings.base import Settings, check_member

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
    seed: Tensor | None = None
    normalizer: Callable = log_sum_exp  # Logits minus its result are log-probabilities.
    constraints: tuple = ()  # If there are any, a hypothesis may have no allowed next token.

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
    finds_terms: ClassVar[bool] = False  # whether it follows `RequiredTerms`

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
        seed: Tensor | None = None,
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
            seed: int32 scalar, for `Sampling` only; it replaces the seed of the object, so that a
                search that is compiled once draws other samples with each seed.

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
        limits = ops.minimum(max_lengths, ops.cast(max_length, "int32"))
        ids = bos_id, eos_id, pad_id
        leaves = [leaf for leaf in keras.tree.flatten(state) if hasattr(leaf, "dtype")]
        dtypes = [keras.backend.standardize_dtype(leaf.dtype) for leaf in leaves]
        dtype = "float64" if "float64" in dtypes else "float32"
        check_argument(seed is None or self.is_random, "seed", "None for this search", seed)
        inputs = SearchInputs(step, state, limits, max_length, *ids, keep_sentences, dtype, seed)
        constraints = (*self.constraints, *constraints)
        if constraints:
            is_misplaced = any(requires_terms([each]) for each in constraints[:-1])
            if is_misplaced or (requires_terms(constraints) and not self.finds_terms):
                rule = "RequiredTerms must be the last constraint of a BeamSearch"
                raise ValueError(f"{rule}. Received: {constraints} of {type(self).__name__}")
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


def compile_search(
    function: Callable,
    variables: Sequence[keras.Variable] = (),
    sizes: Sequence[str] = (),
    ranks: Mapping[str, int] | None = None,
) -> Callable:
    """Compiles a search function, such as one that encodes and then calls `search(step, ...)`.

    On TensorFlow it becomes one `tf.function` of dynamic shapes; on JAX one `jax.jit`, which
    compiles for each shape; on torch it is called as it is, without gradients. Random states must
    not change inside: no dropout.

    Args:
        function: Function of tensors, and of the ints named in `sizes`, to a nest of tensors.
        variables: The `keras.Variable`s that the function reads, such as `model.variables`. (JAX
            compiles a variable that is missing here into the program as a constant.)
        sizes: Names of int arguments that determine shapes, such as `("max_length",)`; pass them
            by keyword. A new value compiles again on JAX only.
        ranks: Number of axes of each argument, all of them int32 and passed by keyword. With it,
            TensorFlow traces once for all shapes; without it, again for the first new shapes.

    Returns:
        A function with the arguments and the results of `function`.

    Example:

    >>> zeros = keras_transformer.decoding.compile_search(lambda n: ops.zeros((n,)), sizes=("n",))
    >>> ops.convert_to_numpy(zeros(n=2)).tolist()
    [0.0, 0.0]
    """
    backend = keras.config.backend()
    if backend == "torch":
        import torch

        return torch.no_grad()(function)
    if backend == "jax":
        return _compile_jax(function, list(variables), sizes)
    import tensorflow as tf

    # Variables are captured by reference: nothing to hand over.
    if ranks is not None:
        specs = {name: tf.TensorSpec([None] * rank, tf.int32, name) for name, rank in ranks.items()}
        return tf.function(function, autograph=False).get_concrete_function(**specs)
    compiled = tf.function(function, reduce_retracing=True, autograph=False)

    @functools.wraps(function)
    def call(*args, **kwargs):
        for name in sizes:
            if isinstance(kwargs.get(name), int):
                kwargs[name] = tf.constant(kwargs[name], dtype=tf.int32)
        return compiled(*args, **kwargs)

    return call


class CompiledFunctions:
    """Functions of one model that are compiled once, and again when its variables are others.

    `quantize` and `enable_lora` replace and add variables, which a compiled function would not see.
    Several threads may call `get` at the same time.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._changeable: list | None = None  # The layers that may get other variables.
        self._last_state: list | None = None
        self._compiled: dict[Hashable, Callable] = {}
        self._compiling = threading.Lock()

    def get(
        self,
        key: Hashable,
        function: Callable,
        sizes: Sequence[str] = (),
        ranks: Mapping[str, int] | None = None,
    ) -> Callable:
        """Returns `compile_search(function, model.variables, sizes, ranks)`, stored under a key."""
        with self._compiling:
            # The variables themselves take Keras much longer to list, at every call.
            if self._changeable is None:
                parts = all_parts(self._model)
                self._changeable = [part for part in parts if hasattr(part, "lora_enabled")]
            state = [(part.dtype_policy, part.lora_enabled) for part in self._changeable]
            if state != self._last_state:
                self._compiled.clear()
                self._last_state = state
            if key not in self._compiled:
                variables = self._model.variables
                self._compiled[key] = compile_search(function, variables, sizes, ranks)
            return self._compiled[key]


def _compile_jax(function, variables, sizes):
    import jax

    def stateless(values, args, **kwargs):
        mapping = list(zip(variables, values, strict=True))
        with keras.StatelessScope(state_mapping=mapping):
            return function(*args, **kwargs)

    compiled = jax.jit(stateless, static_argnames=tuple(sizes))

    @functools.wraps(function)
    def call(*args, **kwargs):
        values = [variable.value for variable in variables]
        if all(value.is_fully_replicated for value in values):
            # Each process computes by itself, on a device of its own.
            values = [value.addressable_data(0) for value in values]
        return compiled(values, args, **kwargs)

    return call
