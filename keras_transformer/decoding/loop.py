"""The loop over steps that all searches share, and a `top_k` with a fixed order of ties."""

import functools
import math

import keras
from keras import ops

from keras_transformer.layers.caches import take_entries

# Maximum number of steps between two calls of `keep_sentences`, which merges growing caches.
_STEPS_IN_A_ROUND = 32
# Backends whose own top_k promises the lower index first among equal values.
_STABLE_BACKENDS = ("tensorflow", "jax")
# Minimum number of values where it is not static, which happens only on TensorFlow.
SMALLEST_DYNAMIC_SIZE = 512
# Minimum number of values among which blocks find the largest one faster.
_SMALLEST_SIZE_OF_ONE = 2048


def keep_shapes(new, old):
    """Returns the tensors of `new` with the static shapes of `old`, as `while_loop` requires.

    On TensorFlow, a gather with dynamic indices forgets dimensions that were known before. A dtype
    that changed raises a `ValueError`.
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

    TensorFlow's oneDNN compiles a kernel for each shape, so few shapes should occur.
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


def top_k(values, k, addends=()):
    """Returns each sentence's `k` largest values and their indices; ties go to the lower index.

    The `values` of a sentence are `width` hypotheses of `size` numbers, `[batch * width, size]`,
    without NaN, ranked as one list of `width * size` numbers, at least `k`. The tensors `addends`,
    each `[batch, width]`, are added to the hypotheses first, in turn; without them the width is 1.

    Long lists are searched by blocks: the k largest values lie in the k blocks whose maxima are
    largest, so only these are ranked. A size that is not static must be at least
    `SMALLEST_DYNAMIC_SIZE`, and `k` at most `16 * width`. The results are `[batch, k]`, descending,
    and int32 `[batch, k]`.
    """
    size = ops.shape(values)[-1]
    width = addends[0].shape[-1] if addends else 1
    block_size = _block_size(values.shape[-1], width, k)
    # Integers cannot be padded with minus infinity; they are few.
    if block_size is None or keras.backend.is_int_dtype(values.dtype):
        return _direct_top_k(_sums(values, addends, width), k)
    missing = -size % block_size
    if not (isinstance(missing, int) and missing == 0):
        values = ops.pad(values, [[0, 0], [0, missing]], constant_values=float("-inf"))
    # [batch * width, size] -> [batch * width, blocks, block_size]
    values = ops.reshape(values, (-1, (size + missing) // block_size, block_size))
    maxima = ops.max(values, axis=-1)  # [batch * width, blocks]
    num_blocks = ops.shape(maxima)[1]
    _, blocks = _direct_top_k(_sums(maxima, addends, width), k)
    # Blocks in ascending order keep the order of indices, so that ties go to the lower index.
    blocks = ops.sort(blocks, axis=-1) if k > 1 else blocks  # [batch, k]
    members, starts = blocks // num_blocks, block_size * (blocks % num_blocks)
    batch = ops.shape(blocks)[0]
    first = (width * num_blocks) * ops.expand_dims(ops.arange(batch, dtype="int32"), -1)
    # [batch * width, blocks, block_size] -> [batch * width * blocks, block_size]
    kept = ops.take(ops.reshape(values, (-1, block_size)), first + blocks, axis=0)
    for addend in addends:
        kept = kept + ops.expand_dims(ops.take_along_axis(addend, members, axis=-1), -1)
    # [batch, k, block_size] -> [batch, k * block_size]
    largest, best = _direct_top_k(ops.reshape(kept, (-1, k * block_size)), k)
    starts = ops.take_along_axis(size * members + starts, best // block_size, axis=-1)
    return largest, starts + best % block_size


@functools.cache
def _block_size(size, width, k):
    """Returns the block size for `width` hypotheses of `size` values; None to rank all of them."""
    if size is None:
        return SMALLEST_DYNAMIC_SIZE // 16 if k > 1 else None
    # The factor makes blocks larger, because the maxima of small blocks take long to compute.
    wanted = 1.5 * math.sqrt(width * size / k)
    if width * size < max(4 * k * wanted, _SMALLEST_SIZE_OF_ONE if k == 1 else 0):
        return None
    # Blocks of equal size need no padding, and multiples of 16 are fastest.
    for step in (16, 1):
        divisors = [number for number in range(step, size, step) if size % number == 0]
        nearest = min(divisors, key=lambda number: abs(number - wanted), default=0)
        if wanted / 2 <= nearest <= 2 * wanted:
            return nearest
    return 16 * max(1, round(wanted / 16))


def _sums(values, addends, width):
    """Returns values `[batch * width, size]` plus the addends, as `[batch, width * size]`."""
    size = ops.shape(values)[-1]
    sums = ops.reshape(values, (-1, width, size))  # [batch, width, size]
    for addend in addends:
        sums = sums + ops.expand_dims(addend, -1)
    return ops.reshape(sums, (-1, width * size))


def _direct_top_k(values, k):
    if keras.config.backend() in _STABLE_BACKENDS:
        largest, indices = ops.top_k(values, k)
        return largest, ops.cast(indices, "int32")
    # Both take the first of equal values on torch, where the sort is stable.
    if k == 1:
        indices = ops.argmax(values, axis=-1, keepdims=True)
    else:
        indices = ops.argsort(ops.negative(values), axis=-1)[:, :k]
    return ops.take_along_axis(values, indices, axis=-1), ops.cast(indices, "int32")
