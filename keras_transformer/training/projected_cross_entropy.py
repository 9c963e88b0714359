"""Projection and cross-entropy as one: few logits at a time, and none of padding."""

import keras
from keras import ops

from keras_transformer.layers.dtypes import at_least_float32
from keras_transformer.training.label_smoothing import closed_form, smoothed_cross_entropy

_PADDING_ID = 0
# Logits that exist at the same time. Many small slices cost time, since each product prepares the
# embeddings anew (on two cores, 2,048 x 32,000 in bfloat16: 128 MB 5 % slower than one slice).
LOGITS_BYTES = 512 * 2**20


def projected_cross_entropy(states, embeddings, labels, weight, training, static_shapes=False):
    """Return the smoothed cross-entropy of every token, 0 on padding.

    The same as `smoothed_cross_entropy(labels, states . embeddings^T, weight)` where the label is
    no padding, with at most 512 MB of logits at a time.

    Args:
        states: `[batch, length, d_model]`, of the compute dtype.
        embeddings: `[vocabulary, d_model]`, of the weight's own dtype.
        labels: int32 `[batch, length]`, 0 on padding.
        weight: float, see `smoothing_weight`.
        training: Whether there will be a gradient.
        static_shapes: Whether TensorFlow must know all shapes beforehand, as XLA does.

    Returns:
        `[batch, length]`, in at least float32.
    """
    rows = max(1, LOGITS_BYTES // (4 * embeddings.shape[0]))
    if keras.backend.backend() == "tensorflow" and not static_shapes:
        return _tensorflow_losses(states, embeddings, labels, weight, rows, training)
    return _portable_losses(states, embeddings, labels, weight, rows)


def _portable_losses(states, embeddings, labels, weight, rows):
    """All tokens, slice by slice; the gradient computes the logits of a slice once more."""
    kernel = ops.cast(embeddings, states.dtype)
    flat = ops.reshape(states, (-1, states.shape[-1]))
    flat_labels = ops.reshape(labels, (-1,))

    number = flat.shape[0]
    # JAX cannot compute a part anew that has a gradient of its own.
    cross_entropy = closed_form if number > rows else smoothed_cross_entropy

    def slice_losses(states, labels):
        logits = ops.matmul(states, ops.transpose(kernel))
        logits = ops.cast(logits, at_least_float32(logits.dtype))
        return cross_entropy(labels, logits, weight)

    if number > rows:
        slice_losses = keras.remat(slice_losses)
    losses = ops.concatenate(
        [
            slice_losses(flat[start : start + rows], flat_labels[start : start + rows])
            for start in range(0, number, rows)
        ]
    )
    losses = ops.where(ops.not_equal(flat_labels, _PADDING_ID), losses, 0.0)
    return ops.reshape(losses, ops.shape(labels))


def _tensorflow_losses(states, embeddings, labels, weight, rows, training):
    """Only the tokens that are no padding; in training with their gradient made on the way.

    The gradient of a slice needs the factor that each loss will get. It is the same for all tokens
    if their sample weights are, as those of `TokenBatches`: so the gradient is made for a factor of
    1, while the logits are at hand, and scaled later. For other weights it is made once more.
    """
    import tensorflow as tf

    dtype = at_least_float32(states.dtype)
    places = tf.where(tf.not_equal(labels, _PADDING_ID))
    token_labels = tf.gather_nd(labels, places)
    d_model = states.shape[-1]

    def slices(kernel, tokens, factors, with_gradient):
        """Return losses, and the gradients of `tokens` and of the embeddings, in a loop."""
        number = tf.shape(tokens)[0]
        count = tf.maximum(1, (number + rows - 1) // rows)  # A replica may have no token.
        arrays = [
            tf.TensorArray(kind, count, element_shape=shape, infer_shape=False)
            for kind, shape in ((dtype, [None]), (tokens.dtype, [None, d_model]))
        ]

        def body(index, losses, token_gradients, kernel_gradient):
            part = slice(index * rows, tf.minimum((index + 1) * rows, number))
            loss, gradients = _slice(
                tokens[part], kernel, token_labels[part], factors[part], weight, with_gradient
            )
            losses = losses.write(index, loss)
            if with_gradient:
                token_gradients = token_gradients.write(index, gradients[0])
                kernel_gradient += tf.cast(gradients[1], kernel_gradient.dtype)
            return index + 1, losses, token_gradients, kernel_gradient

        shape = embeddings.shape if with_gradient else []
        _, losses, token_gradients, kernel_gradient = tf.while_loop(
            lambda index, *_: index < count,
            body,
            (0, *arrays, tf.zeros(shape, embeddings.dtype)),
            parallel_iterations=1,
        )
        if not with_gradient:
            return losses.concat(), None, None
        return losses.concat(), token_gradients.concat(), kernel_gradient

    @tf.custom_gradient
    def token_losses(tokens, embeddings):
        kernel = tf.cast(embeddings, tokens.dtype)
        ones = tf.ones_like(token_labels, dtype)
        losses, token_gradients, kernel_gradient = slices(kernel, tokens, ones, training)

        def gradient(upstream):
            def scaled():
                factor = tf.reduce_max(upstream)
                return (
                    token_gradients * tf.cast(factor, tokens.dtype),
                    kernel_gradient * tf.cast(factor, embeddings.dtype),
                )

            def anew():
                return slices(kernel, tokens, upstream, True)[1:]

            if not training:
                return anew()
            is_same = tf.equal(tf.reduce_max(upstream), tf.reduce_min(upstream))
            return tf.cond(is_same, scaled, anew)

        return losses, gradient

    losses = token_losses(tf.gather_nd(states, places), tf.convert_to_tensor(embeddings))
    losses = tf.scatter_nd(places, losses, tf.shape(labels, places.dtype))
    losses.set_shape(labels.shape)
    return losses


def _slice(tokens, kernel, labels, factors, weight, with_gradient):
    """Return the losses of some tokens, and the gradients of the sum of losses times factors.

    The formulas are those of `smoothed_cross_entropy`.
    """
    import tensorflow as tf

    num_classes = kernel.shape[0]
    logits = tf.matmul(tokens, kernel, transpose_b=True)
    logits = tf.cast(logits, factors.dtype)
    softmax = tf.nn.softmax(logits)
    log_sum = -tf.math.log(tf.reduce_max(softmax, axis=-1))
    largest = tf.reduce_max(logits, axis=-1)
    label_logits = tf.gather(logits, labels, batch_dims=1) - largest
    mean = tf.reduce_mean(logits, axis=-1) - largest
    losses = log_sum - (1.0 - weight) * label_logits - weight * mean
    if not with_gradient:
        return losses, None
    places = tf.stack([tf.range(tf.shape(labels)[0]), labels], axis=-1)
    difference = tf.tensor_scatter_nd_add(
        softmax - weight / num_classes, places, tf.fill(tf.shape(labels), weight - 1.0)
    )
    difference = tf.cast(difference, tokens.dtype)
    # Rows of the small matrices are scaled instead of those of the large one.
    factors = tf.expand_dims(tf.cast(factors, tokens.dtype), 1)
    token_gradients = tf.matmul(difference, kernel) * factors
    return losses, (
        token_gradients,
        tf.matmul(difference, tokens * factors, transpose_a=True),
    )
