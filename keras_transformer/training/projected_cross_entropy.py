"""Projection and cross-entropy as one operation that needs little memory."""

import functools

import keras
from keras import ops

from keras_transformer.data.special_tokens import PAD_ID
from keras_transformer.layers.dtypes import Tensor, at_least_float32
from keras_transformer.models.cross_entropy import (
    losses_and_gradient,
    r_drop_losses,
    smoothed_cross_entropy,
)

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

# Maximum size of the logits that exist at the same time. Small slices cost time, because each
# product prepares the embeddings again (on two cores, with 2,048 x 32,000 logits in bfloat16,
# slices of 128 MB are 5% slower than one slice).
LOGITS_BYTES = 512 * 2**20


def projected_cross_entropy(
    states: Tensor,
    embeddings: Tensor,
    labels: Tensor,
    weight: float,
    training: bool,
    static_shapes: bool = False,
    r_drop: float = 0.0,
) -> Tensor:
    """Returns `smoothed_cross_entropy` of `states . embeddings^T`, in slices; 0 on padding.

    On TensorFlow, `static_shapes` computes all logits at once, for XLA. `r_drop` is the alpha of
    R-Drop; with it, states have two rows for each row of labels; the losses are `r_drop_losses`.
    """
    width = states.shape[-1]
    if r_drop:
        rows, length = ops.shape(labels)
        states = ops.transpose(ops.reshape(states, (rows, 2, length, width)), (0, 2, 1, 3))
    rows = max(1, LOGITS_BYTES // (8 if r_drop else 4) // embeddings.shape[0])
    is_tensorflow = keras.backend.backend() == "tensorflow"
    if is_tensorflow and not static_shapes:
        return _tensorflow_losses(states, embeddings, labels, weight, rows, training, r_drop)
    rows = None if is_tensorflow else rows
    return _portable_losses(states, embeddings, labels, weight, rows, r_drop)


def _portable_losses(states, embeddings, labels, weight, rows, r_drop):
    """Returns the losses of all tokens, in slices; the gradient computes their logits again."""
    kernel = ops.cast(embeddings, states.dtype)
    flat = ops.reshape(states, (-1, *states.shape[2:]))
    flat_labels = ops.reshape(labels, (-1,))
    is_sliced = rows is not None and flat.shape[0] > rows

    def slice_losses(states, labels):
        logits = ops.matmul(states, ops.transpose(kernel))
        logits = ops.cast(logits, at_least_float32(logits.dtype))
        if r_drop:
            return r_drop_losses(labels, logits, weight, r_drop)
        return smoothed_cross_entropy(labels, logits, weight)

    if is_sliced:
        recomputed = keras.remat(slice_losses)
        parts = [slice(start, start + rows) for start in range(0, flat.shape[0], rows)]
        losses = ops.concatenate([recomputed(flat[part], flat_labels[part]) for part in parts])
    else:
        losses = slice_losses(flat, flat_labels)
    losses = ops.where(ops.not_equal(flat_labels, PAD_ID), losses, 0.0)
    return ops.reshape(losses, ops.shape(labels))


def _tensorflow_losses(states, embeddings, labels, weight, rows, training, r_drop):
    """Returns the losses, computed without padding; in training, together with the gradient."""
    places = tf.where(tf.not_equal(labels, PAD_ID))
    tokens, token_labels = tf.gather_nd(states, places), tf.gather_nd(labels, places)
    embeddings = tf.convert_to_tensor(embeddings)
    if training:
        dtypes = tokens.dtype.name, embeddings.dtype.name
        token_losses = _token_losses(embeddings.shape, tokens.shape[1:], *dtypes, rows, r_drop)
        losses = token_losses(tokens, embeddings, token_labels, weight)
    else:
        ones = tf.ones_like(token_labels, at_least_float32(tokens.dtype))
        losses = _in_slices(tokens, embeddings, token_labels, ones, weight, rows)
    losses = tf.scatter_nd(places, losses, tf.shape(labels, places.dtype))
    losses.set_shape(labels.shape)
    return losses


@functools.cache
def _token_losses(kernel_shape, token_shape, dtype, embeddings_dtype, rows, r_drop):
    """Returns a TensorFlow function of tokens, embeddings, labels and `weight`, for all models.

    The forward pass computes the gradients too, for an upstream gradient that is the same for all
    tokens; they are computed again if it is not.
    """
    wide = at_least_float32(dtype)
    signature = [
        tf.TensorSpec([None, *token_shape], dtype),
        tf.TensorSpec(kernel_shape, embeddings_dtype),
        tf.TensorSpec([None], "int32"),
        tf.TensorSpec([], wide),
    ]

    @tf.function(input_signature=signature)
    def token_losses(tokens, embeddings, labels, weight):
        @tf.custom_gradient
        def differentiable_losses(tokens, embeddings):
            def with_gradients(factors):
                arguments = tokens, embeddings, labels, factors, weight, rows
                return _in_slices(*arguments, r_drop, with_gradient=True)

            losses, *gradients = with_gradients(tf.ones_like(labels, wide))

            def gradient(upstream):
                factor = tf.reduce_max(upstream)
                return tf.cond(
                    tf.equal(factor, tf.reduce_min(upstream)),
                    lambda: [one * tf.cast(factor, one.dtype) for one in gradients],
                    lambda: list(with_gradients(upstream)[1:]),
                )

            return losses, gradient

        return differentiable_losses(tokens, embeddings)

    return token_losses


def _in_slices(tokens, embeddings, labels, factors, weight, rows, r_drop=0.0, with_gradient=False):
    """Returns losses, and gradients of their sum weighted by `factors`, in slices of `rows`."""
    kernel, wide = tf.cast(embeddings, tokens.dtype), factors.dtype
    kernel_sum = tf.reduce_sum(tf.cast(kernel, wide), axis=0)
    rows_of_token = 2 if r_drop else 1
    number = tf.shape(tokens)[0]
    count = tf.maximum(1, (number + rows - 1) // rows)  # A replica may have no token.
    arrays = [
        tf.TensorArray(kind, count, element_shape=shape, infer_shape=False)
        for kind, shape in ((factors.dtype, [None]), (tokens.dtype, [None, *tokens.shape[1:]]))
    ]

    def body(index, losses, token_gradients, dense_gradient, sparse_gradient):
        part = slice(index * rows, tf.minimum((index + 1) * rows, number))
        tokens_here = tokens[part]
        states = tf.reshape(tokens_here, [-1, tokens.shape[-1]])
        labels_here = tf.repeat(labels[part], rows_of_token)
        logits = tf.cast(tf.matmul(states, kernel, transpose_b=True), wide)
        mean = tf.linalg.matvec(tf.cast(states, wide), kernel_sum / kernel.shape[0])
        loss, gradient = losses_and_gradient(labels_here, logits, weight, r_drop, mean)
        losses = losses.write(index, loss)
        if with_gradient:
            factors_here = tf.repeat(factors[part], rows_of_token)[:, None]
            changes = _gradients(states, kernel, kernel_sum, labels_here, gradient(), factors_here)
            change = tf.reshape(changes[0], tf.shape(tokens_here))
            token_gradients = token_gradients.write(index, change)
            dense_gradient += changes[1]
            sparse_gradient += changes[2]
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
    kernel_gradient = tf.cast(tf.transpose(dense_gradient) + sparse_gradient, embeddings.dtype)
    return losses.concat(), token_gradients.concat(), kernel_gradient


def _gradients(states, kernel, kernel_sum, labels, gradient, factors):
    """Returns the gradient of the states, and two arrays whose sum is the kernel's gradient.

    The first array, transposed to `[d_model, V]`, is from `gradient.rows`; the second, `[V,
    d_model]`, is from the other parts of the `Gradient`.
    """
    rows, at_labels, everywhere = gradient
    dtype, wide = states.dtype, rows.dtype
    rounded = tf.cast(rows, dtype)
    if dtype != wide:  # At the labels, the rounding error is added back.
        at_labels += tf.gather(rows, labels, batch_dims=1)
        at_labels -= tf.cast(tf.gather(rounded, labels, batch_dims=1), wide)
    at_labels = at_labels[:, None]
    others = at_labels * tf.cast(tf.gather(kernel, labels), wide) + everywhere * kernel_sum
    # Rows of the small matrices are scaled instead of those of the large one.
    of_states = (tf.cast(tf.matmul(rounded, kernel), wide) + others) * factors
    scaled = tf.cast(states, wide) * factors
    # In this order oneDNN copies the small matrix, not the large one.
    dense = tf.cast(tf.matmul(tf.cast(scaled, dtype), rounded, transpose_a=True), wide)
    sparse = tf.math.unsorted_segment_sum(at_labels * scaled, labels, kernel.shape[0])
    sparse += everywhere * tf.reduce_sum(scaled, axis=0)
    return tf.cast(of_states, dtype), dense, sparse
