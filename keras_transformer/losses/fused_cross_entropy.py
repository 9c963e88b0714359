"""Cross-entropy and its gradient in one pass, on TensorFlow.

Without XLA every operation is a pass over `[tokens, V]`, so loss and gradient share one softmax:
the gradient of `cross_entropy` with respect to the logits is `softmax(logits) - target`.
"""

import functools
from typing import NamedTuple

import tensorflow as tf

from keras_transformer.layers.tensors import Tensor, at_least_float32

# A smaller probability has lost digits in float32.
_SMALLEST_EXACT = 1e-30


def fused_cross_entropy(labels: Tensor, logits: Tensor, smoothing: float) -> Tensor:
    """Returns `cross_entropy`, on TensorFlow; 4 times as fast with its gradient on a CPU."""
    logits, labels = tf.convert_to_tensor(logits), tf.convert_to_tensor(labels)
    num_classes = logits.shape[-1]
    losses = _losses_of_logits(num_classes, logits.dtype.name)(
        tf.reshape(labels, [-1]), tf.reshape(logits, [-1, num_classes]), smoothing
    )
    losses = tf.reshape(losses, tf.shape(labels))
    losses.set_shape(labels.shape)
    return losses


@functools.cache
def _losses_of_logits(num_classes, dtype):
    """Returns a TensorFlow function of labels, logits and `smoothing`, for all models.

    TensorFlow keeps every custom gradient forever, together with the graph it was made in.
    """
    specs = [([None], "int32"), ([None, num_classes], dtype), ([], dtype)]

    @tf.function(input_signature=[tf.TensorSpec(*spec) for spec in specs])
    def losses_of(labels, logits, smoothing):
        @tf.custom_gradient
        def loss(logits):
            mean = tf.reduce_mean(logits, axis=-1)
            losses, softmax = _losses_and_softmax(labels, logits, mean, smoothing)

            def gradient(upstream):
                positions = tf.stack([tf.range(tf.shape(labels)[0]), labels], axis=-1)
                at_labels = tf.fill(tf.shape(labels), smoothing - 1.0)
                others = softmax - smoothing / num_classes
                return tf.tensor_scatter_nd_add(others, positions, at_labels) * upstream[:, None]

            return losses, gradient

        return loss(logits)

    return losses_of


def fused_projected_cross_entropy(
    labels: Tensor,
    states: Tensor,
    embeddings: Tensor,
    smoothing: float,
    is_token: Tensor,
    tokens_per_slice: int,
    r_drop: float,
    training: bool,
) -> Tensor:
    """Returns the cross-entropy of `states . embeddings^T` at each label, 0 at padding.

    Args:
        labels: `[batch, length]`, int32.
        states: `[batch, length, d_model]`; with R-Drop `[batch, length, 2, d_model]`.
        embeddings: `[V, d_model]`.
        smoothing: `a` of `uniform_share`.
        is_token: `[batch, length]`, bool; the others are not computed.
        tokens_per_slice: Number of tokens whose logits exist at the same time.
        r_drop: Alpha of R-Drop, 0 for none.
        training: Whether to compute the gradient together with the losses.

    Returns:
        `[batch, length]`, in at least float32.
    """
    positions = tf.where(is_token)
    tokens, token_labels = tf.gather_nd(states, positions), tf.gather_nd(labels, positions)
    embeddings = tf.convert_to_tensor(embeddings)
    if training:
        dtypes = tokens.dtype.name, embeddings.dtype.name
        options = tokens_per_slice, r_drop
        token_losses = _token_losses(embeddings.shape, tokens.shape[1:], *dtypes, *options)
        losses = token_losses(tokens, embeddings, token_labels, smoothing)
    else:
        ones = tf.ones_like(token_labels, at_least_float32(tokens.dtype))
        losses = _in_slices(tokens, embeddings, token_labels, ones, smoothing, tokens_per_slice)
    losses = tf.scatter_nd(positions, losses, tf.shape(labels, positions.dtype))
    losses.set_shape(labels.shape)
    return losses


@functools.cache
def _token_losses(matrix_shape, token_shape, dtype, embeddings_dtype, tokens_per_slice, r_drop):
    """Returns a TensorFlow function of tokens, embeddings, labels and `smoothing`, for all models.

    The forward pass computes the gradients too, for an upstream gradient that is the same for all
    tokens; they are computed again if it is not.
    """
    wide = at_least_float32(dtype)
    signature = [
        tf.TensorSpec([None, *token_shape], dtype),
        tf.TensorSpec(matrix_shape, embeddings_dtype),
        tf.TensorSpec([None], "int32"),
        tf.TensorSpec([], wide),
    ]

    @tf.function(input_signature=signature)
    def token_losses(tokens, embeddings, labels, smoothing):
        @tf.custom_gradient
        def differentiable_losses(tokens, embeddings):
            def with_gradients(factors):
                arguments = tokens, embeddings, labels, factors, smoothing, tokens_per_slice
                return _in_slices(*arguments, r_drop, with_gradient=True)

            losses, *gradients = with_gradients(tf.ones_like(labels, wide))

            def gradient(upstream):
                factor = tf.reduce_max(upstream)
                return tf.cond(
                    tf.equal(factor, tf.reduce_min(upstream)),
                    lambda: [array * tf.cast(factor, array.dtype) for array in gradients],
                    lambda: list(with_gradients(upstream)[1:]),
                )

            return losses, gradient

        return differentiable_losses(tokens, embeddings)

    return token_losses


class _Projection(NamedTuple):
    """The projection to logits, and the parts of the gradient by logits that all tokens share.

    The gradient of a token's loss is its `by_logits`, plus `at_label` at its label, plus
    `everywhere`.
    """

    matrix: Tensor  # [V, d_model], in the dtype of the states
    matrix_sum: Tensor  # [d_model], the sum over V, in at least float32
    at_label: Tensor
    everywhere: Tensor


def _in_slices(
    tokens, embeddings, labels, factors, smoothing, slice_size, r_drop=0.0, with_gradient=False
):
    """Returns losses, and gradients of their sum weighted by `factors`, slice by slice."""
    matrix, wide = tf.cast(embeddings, tokens.dtype), factors.dtype
    num_classes, passes = matrix.shape[0], 2 if r_drop else 1
    projection = _Projection(
        matrix,
        matrix_sum=tf.reduce_sum(tf.cast(matrix, wide), axis=0),
        at_label=(smoothing - 1.0) / passes,
        everywhere=-smoothing / num_classes / passes,
    )
    number = tf.shape(tokens)[0]
    count = tf.maximum(1, -(-number // slice_size))  # A replica may have no token.
    arrays = [
        tf.TensorArray(kind, count, element_shape=shape, infer_shape=False)
        for kind, shape in ((factors.dtype, [None]), (tokens.dtype, [None, *tokens.shape[1:]]))
    ]

    def body(index, losses, token_gradients, dense_gradient, sparse_gradient):
        here = slice(index * slice_size, (index + 1) * slice_size)
        # With R-Drop, the two passes of a token follow each other.
        states = tf.reshape(tokens[here], [-1, tokens.shape[-1]])
        labels_here = tf.repeat(labels[here], passes)
        logits = tf.cast(tf.matmul(states, matrix, transpose_b=True), wide)
        mean = tf.linalg.matvec(tf.cast(states, wide), projection.matrix_sum / num_classes)
        loss, by_logits = _losses_and_softmax(labels_here, logits, mean, smoothing)
        if r_drop:
            loss, by_logits = _with_divergences(loss, by_logits, logits, r_drop)
        losses = losses.write(index, loss)
        if with_gradient:
            factors_here = tf.repeat(factors[here], passes)[:, None]
            gradients = _gradients(states, labels_here, by_logits, factors_here, projection)
            by_states, dense, sparse = gradients
            by_states = tf.reshape(by_states, [-1, *tokens.shape[1:]])
            token_gradients = token_gradients.write(index, by_states)
            dense_gradient += dense
            sparse_gradient += sparse
        return index + 1, losses, token_gradients, dense_gradient, sparse_gradient

    shape = embeddings.shape if with_gradient else [1, 1]
    _, losses, token_gradients, dense_gradient, sparse_gradient = tf.while_loop(
        lambda index, *_: index < count,
        body,
        (0, *arrays, tf.zeros(shape[::-1], wide), tf.zeros(shape, wide)),
        parallel_iterations=1,
    )
    if not with_gradient:
        return losses.concat()
    matrix_gradient = tf.cast(tf.transpose(dense_gradient) + sparse_gradient, embeddings.dtype)
    return losses.concat(), token_gradients.concat(), matrix_gradient


def _gradients(states, labels, by_logits, factors, projection):
    """Returns the gradients of a weighted sum of losses.

    Args:
        states: `[tokens, d_model]`.
        labels: `[tokens]`.
        by_logits: `[tokens, V]`, see `_Projection`.
        factors: `[tokens, 1]`, the weights of the losses.
        projection: `_Projection`.

    Returns:
        The gradient by `states`, that by the matrix through `by_logits`, `[d_model, V]`, and the
        rest of it, `[V, d_model]`.
    """
    matrix, matrix_sum, at_label, everywhere = projection
    dtype, wide = states.dtype, by_logits.dtype
    rounded = tf.cast(by_logits, dtype)
    at_labels = tf.fill(tf.shape(labels), at_label)
    if dtype != wide:  # At the labels, the rounding error is added back.
        at_labels += tf.gather(by_logits, labels, batch_dims=1)
        at_labels -= tf.cast(tf.gather(rounded, labels, batch_dims=1), wide)
    at_labels = at_labels[:, None]
    others = at_labels * tf.cast(tf.gather(matrix, labels), wide) + everywhere * matrix_sum
    # Rows of the small matrices are scaled instead of those of the large one.
    by_states = (tf.cast(tf.matmul(rounded, matrix), wide) + others) * factors
    scaled = tf.cast(states, wide) * factors
    # In this order oneDNN copies the small matrix, not the large one.
    dense = tf.cast(tf.matmul(tf.cast(scaled, dtype), rounded, transpose_a=True), wide)
    sparse = tf.math.unsorted_segment_sum(at_labels * scaled, labels, matrix.shape[0])
    sparse += everywhere * tf.reduce_sum(scaled, axis=0)
    return tf.cast(by_states, dtype), dense, sparse


def _losses_and_softmax(labels, logits, mean, smoothing):
    """Returns the losses of logits `[tokens, V]`, given their means `[tokens]`, and the softmax."""
    softmax = tf.nn.softmax(logits)
    label_logits = tf.gather(logits, labels, batch_dims=1)
    label_softmax = tf.gather(softmax, labels, batch_dims=1)
    # Differences of logits lose no digits, even where logits are large.
    losses = tf.cond(
        tf.reduce_all(label_softmax > _SMALLEST_EXACT),
        lambda: -tf.math.log(label_softmax),
        # The largest probability is at least 1 / V: its logarithm is exact, whatever the logits.
        lambda: (
            (tf.reduce_max(logits, axis=-1) - label_logits)
            - tf.math.log(tf.reduce_max(softmax, axis=-1))
        ),
    )
    # A logit may be minus infinity, and 0 * infinity is no number.
    return losses + tf.math.multiply_no_nan(label_logits - mean, smoothing), softmax


def _with_divergences(losses, softmax, logits, alpha):
    """Returns the losses of R-Drop of pairs of passes, and the part of the gradient by logit."""
    p, q = tf.unstack(tf.reshape(softmax, [-1, 2, softmax.shape[-1]]), axis=1)
    first, second = tf.unstack(tf.reshape(logits, [-1, 2, logits.shape[-1]]), axis=1)
    difference = first - second
    # KL(p || q) + KL(q || p) = sum((p - q) * difference): the normalizers cancel.
    of_p, of_q = (tf.reduce_sum(shares * difference, axis=-1, keepdims=True) for shares in (p, q))
    # Gradient of the divergence: p * (difference - of_p) + p - q. The mean of the two
    # cross-entropies adds p / 2, which is 2 / alpha * p before the factor alpha / 4 below.
    share = 2 / alpha + 1
    by_first = p * (difference + (share - of_p)) - q
    by_second = q * ((share + of_q) - difference) - p
    by_logits = tf.reshape(tf.stack([by_first, by_second], axis=1), tf.shape(softmax))
    losses = tf.reduce_mean(tf.reshape(losses, [-1, 2]), axis=1)
    return losses + alpha / 4 * tf.squeeze(of_p - of_q, 1), alpha / 4 * by_logits
