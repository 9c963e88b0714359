"""The interface of constraints, and `ForcedPrefix`, which has data of each sentence."""

from typing import Any, NamedTuple, Protocol

from keras import ops

from keras_transformer.layers.dtypes import Tensor
from keras_transformer.layers.shapes import check_rank
from keras_transformer.settings.setting import Rule


class Generated(NamedTuple):
    """Tokens that the rows of a search have generated so far, as a constraint sees them.

    A batch has `width` rows for each sentence, sentence-major.

    Attributes:
        tokens: int32 `[rows, max_length]`, without BOS, padding from `length` on.
        last_tokens: int32 `[rows]`; BOS in the first call.
        length: int32 scalar, the number of tokens, the same for all rows; 0 in the first call.
        max_lengths: int32 `[rows]`, maximum number of tokens of the row's sentence, EOS included.
        log_probabilities: float `[rows, vocabulary]`, the model's own, before any constraint.
        eos_id: Id that ends a hypothesis.

    Example:

    >>> from keras_transformer.decoding import Generated
    >>> generated = Generated(tokens=ops.array([[7, 5, 0]]), last_tokens=ops.array([5]),
    ...                       length=ops.array(2), max_lengths=ops.array([3]),
    ...                       log_probabilities=ops.log(ops.ones((1, 8)) / 8), eos_id=3)
    >>> ops.convert_to_numpy(generated.max_lengths - generated.length).tolist()
    [1]
    """

    tokens: Any
    last_tokens: Any
    length: Any
    max_lengths: Any
    log_probabilities: Any
    eos_id: int


class Constraint(Protocol):
    """A rule for hypotheses: `constraint(state, log_probabilities, generated)` at each step.

    The call returns the new state and the log-probabilities that the search uses: minus infinity
    for a token that must not come next. They cover the whole vocabulary. The search does not
    renormalize them, so that scores stay the model's own. They must not exceed 0, because the
    early stop of a beam search relies on it.

    Constraints are applied in order, first those of the search, then those of the call. A row is
    dead once no token is left; a sentence without any hypothesis is an empty place of the
    `SearchResult`: score minus infinity, length 0.

    `start(max_lengths, width)` gives the state before the first step: `max_lengths` is int32
    `[batch]`, and every sentence has `width` rows. The state is a nest of tensors with the leading
    axis `batch * width`, or `()`. The search reorders it with the beams and drops the rows of
    finished sentences, so the state must hold everything that belongs to a sentence. Dtypes and
    shapes, except for the number of rows, must not change. On JAX and in a TensorFlow graph the
    call is traced once: use `keras.ops` for everything that depends on values.

    A constraint that has only settings is a frozen dataclass and belongs to a search; one with data
    for each sentence is made for each call, like `ForcedPrefix`.

    Args:
        state: State that `start` or the last call returned, reordered.
        log_probabilities: float `[rows, vocabulary]`, from the constraint before; the vocabulary
            size is static.
        generated: A `Generated`.

    Example:

    >>> from keras_transformer.decoding import GreedySearch
    >>> class Countdown:  # Each token has a lower id than the one before; EOS is 0.
    ...     def start(self, max_lengths, width):
    ...         return ops.full((ops.shape(max_lengths)[0] * width,), 99, dtype="int32")
    ...     def __call__(self, state, log_probabilities, generated):
    ...         last = ops.where(generated.length > 0, generated.last_tokens, state)
    ...         ids = ops.arange(log_probabilities.shape[-1])
    ...         is_lower = ids < ops.expand_dims(last, -1)  # [rows, vocabulary]
    ...         return last, ops.where(is_lower, log_probabilities, float("-inf"))
    >>> step = lambda tokens, rows, state: (ops.array([[1.0, 2, 3, 2]]), state)
    >>> result = GreedySearch(constraints=[Countdown()])(step, (), [9], max_length=4, eos_id=0)
    >>> ops.convert_to_numpy(result.tokens).tolist()
    [[[2, 1, 0, 0]]]
    """

    def start(self, max_lengths: Any, width: int) -> Any: ...

    def __call__(
        self, state: Any, log_probabilities: Any, generated: Generated
    ) -> tuple[Any, Any]: ...


def is_constraint(value: Any) -> bool:
    """Returns whether a value is a `Constraint`."""
    # A class is callable and has a `start` too.
    return callable(value) and hasattr(value, "start") and not isinstance(value, type)


CONSTRAINTS = Rule(
    tuple, "a sequence of `Constraint` objects", lambda values: all(map(is_constraint, values))
)


class ForcedPrefix:
    """Makes every hypothesis of a sentence begin with that sentence's prefix.

    Prefixes are data of a call, so pass this constraint to the call of a search, not to its
    constructor. The prefix overrides the constraints before it: its tokens come even if they were
    ruled out, with the model's log-probability. A prefix longer than the sentence's maximum length
    is cut there.

    Args:
        ids: int32 `[batch, length]`, padded at the end; a row of padding is an empty prefix.
        pad_id: Id of the padding.

    Raises:
        ValueError: If `ids` does not have two dimensions.

    Example:

    >>> from keras_transformer.decoding import ForcedPrefix, GreedySearch
    >>> step = lambda tokens, rows, state: (ops.array([[0.0, 0, 0, 1, 0, 0]] * 2), state)
    >>> prefix = ForcedPrefix(ops.array([[5, 4], [0, 0]]))
    >>> result = GreedySearch()(step, (), [4, 4], max_length=4, constraints=[prefix])
    >>> ops.convert_to_numpy(result.tokens).tolist()
    [[[5, 4, 3, 0]], [[3, 0, 0, 0]]]
    """

    def __init__(self, ids: Tensor, pad_id: int = 0) -> None:
        self.ids = ops.cast(ops.convert_to_tensor(ids), "int32")
        self.pad_id = pad_id
        check_rank("ids", self.ids, "[batch, length]")

    def start(self, max_lengths: Tensor, width: int) -> Tensor:
        end = ops.full((ops.shape(max_lengths)[0], 1), self.pad_id, dtype="int32")
        return ops.repeat(ops.concatenate([self.ids, end], axis=1), width, axis=0)

    def __call__(
        self, state: Tensor, log_probabilities: Tensor, generated: Generated
    ) -> tuple[Tensor, Tensor]:
        place = ops.minimum(generated.length, ops.shape(state)[1] - 1)
        wanted = ops.expand_dims(ops.take(state, place, axis=1), -1)  # [rows, 1]
        is_wanted = ops.equal(ops.arange(log_probabilities.shape[-1], dtype="int32"), wanted)
        forced = ops.where(is_wanted, generated.log_probabilities, float("-inf"))
        has_prefix = ops.not_equal(wanted, self.pad_id)
        return state, ops.where(has_prefix, forced, log_probabilities)
