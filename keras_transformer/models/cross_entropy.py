"""Cross-entropy with label smoothing, of logits or together with the projection to logits.

The smoothed target is `1 - a` times the label plus `a` times the uniform distribution over all `V`
ids (see `uniform_share`). So the loss is `-(1 - a) * log p(label) - a * mean(log p)`, which
needs no `[..., V]` target. Its gradient with respect to the logits is `softmax(logits) - target`.
Without XLA every operation is a pass over `[tokens, V]`, so on TensorFlow loss and gradient share
one softmax.
"""

import functools

import keras
from keras import ops

from keras_transformer.layers.tensors import Tensor, at_least_float32

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf
if keras.backend.backend() == "jax":
    import jax

# Maximum size of the logits that exist at the same time. Small slices cost time, because each
# product prepares the embeddings again (on two cores, with 2,048 x 32,000 logits in bfloat16,
# slices of 128 MB are 5% slower than one slice).
LOGITS_BYTES = 512 * 2**20
# A GPU has the memory for larger slices on JAX, whose gradient computes all slices but one again.
_GPU_FACTOR = 8
# A smaller probability has lost digits in float32.
_SMALLEST_EXACT = 1e-30


def uniform_share(label_smoothing: float, num_classes: int, convention: str = "t2t") -> float:
    """Returns `a`, the share of the uniform distribution over all ids in the smoothed target."""
    if convention == "t2t" and num_classes > 1:
        return label_smoothing * num_classes / (num_classes - 1)
    return label_smoothing


def cross_entropy(labels: Tensor, logits: Tensor, smoothing: float = 0.0) -> Tensor:
    """Returns the cross-entropy of labels `[...]` and logits `[..., V]`, in at least float32.

    `smoothing` is the `uniform_share` of the target.
    """
    if keras.backend.backend() == "jax":
        # XLA makes two passes over the logits of this, and one of its gradient. A lookup of the
        # label would be a pass of its own, with a gradient as large as the logits.
        logits = logits - ops.stop_gradient(ops.max(logits, axis=-1, keepdims=True))
        is_label = ops.equal(ops.arange(logits.shape[-1], dtype="int32"), labels[..., None])
        of_labels = ops.sum(ops.where(is_label, logits, 0.0), axis=-1)
        normalizer = ops.log(ops.sum(ops.exp(logits), axis=-1))
        return normalizer - (1.0 - smoothing) * of_labels - smoothing * ops.mean(logits, axis=-1)
    log_probabilities = ops.log_softmax(logits)
    of_labels = ops.take_along_axis(log_probabilities, labels[..., None], axis=-1)[..., 0]
    return -(1.0 - smoothing) * of_labels - smoothing * ops.mean(log_probabilities, axis=-1)


def _r_drop_losses(labels, logits, smoothing, alpha):
    """Returns half of the loss of R-Drop (Liang et al., 2021, equation 4) for every token.

    It is the mean of the cross-entropies of two passes, `[tokens, 2, V]`, plus `alpha / 4` times
    the sum of the two KL divergences between their distributions.
    """
    entropies = cross_entropy(ops.stack([labels, labels], axis=1), logits, smoothing)
    log_probabilities = ops.log_softmax(logits)
    first, second = log_probabilities[:, 0], log_probabilities[:, 1]
    products = (ops.exp(first) - ops.exp(second)) * (first - second)
    return ops.mean(entropies, axis=1) + alpha / 4 * ops.sum(products, axis=-1)


class ProjectedCrossEntropy(keras.layers.Layer):
    """Cross-entropy of `states . embeddings^T`, in slices that need little memory; 0 on padding.

    `embedding` is a `TiedEmbedding`, `smoothing` as in `cross_entropy`, `r_drop` the alpha of
    R-Drop: above 0, `states` hold each sentence of the labels twice in training. With
    `static_shapes`, TensorFlow computes all logits at once, for XLA.
    """

    def __init__(self, embedding, smoothing: float, r_drop: float = 0.0, **kwargs):
        # Casts nothing: the gradient of the matrix, a sum over all tokens, keeps its precision.
        super().__init__(autocast=False, **kwargs)
        self.embedding = embedding
        self.smoothing = smoothing
        self.r_drop = r_drop
        self.static_shapes = False

    def call(self, states, labels, training=False):
        is_tensorflow = keras.backend.backend() == "tensorflow"
        is_token = ops.not_equal(labels, self.embedding.padding_id)
        r_drop = self.r_drop if training else 0.0
        slice_size = max(1, _logits_bytes() // (8 if r_drop else 4) // self.embedding.vocab_size)
        if r_drop:
            (batch, length), width = ops.shape(labels), states.shape[-1]
            # [batch * 2, length, width] -> [batch, length, 2, width]
            states = ops.transpose(ops.reshape(states, (batch, 2, length, width)), (0, 2, 1, 3))
        if self.embedding.embedding.quantization_mode is not None:
            project = self.embedding.project  # It rounds the states too, as the model does.
        else:
            states, matrix = self._with_bias(states)
            if is_tensorflow and not self.static_shapes:
                options = self.smoothing, slice_size, r_drop
                return _fused_losses(states, matrix, labels, is_token, training, *options)
            project = functools.partial(_product, ops.cast(matrix, states.dtype))

        def slice_losses(states, labels):
            logits = project(states)
            logits = ops.cast(logits, at_least_float32(logits.dtype))
            if r_drop:
                return _r_drop_losses(labels, logits, self.smoothing, r_drop)
            return cross_entropy(labels, logits, self.smoothing)

        flat = ops.reshape(states, (-1, *states.shape[2:]))
        flat_labels = ops.reshape(labels, (-1,))
        if is_tensorflow or flat.shape[0] <= slice_size:
            losses = slice_losses(flat, flat_labels)
        else:  # The gradient computes the logits of a slice again.
            recomputed = keras.remat(slice_losses)
            slices = [slice(n, n + slice_size) for n in range(0, flat.shape[0], slice_size)]
            losses = ops.concatenate([recomputed(flat[part], flat_labels[part]) for part in slices])
        losses = ops.where(ops.reshape(is_token, (-1,)), losses, 0.0)
        return ops.reshape(losses, ops.shape(labels))

    def _with_bias(self, states):
        """Returns states and matrix, with a column of ones and the bias if there is a bias."""
        matrix, bias = self.embedding.output_weights()
        if bias is None:
            return states, matrix
        states = ops.concatenate([states, ops.ones_like(states[..., :1])], axis=-1)
        return states, ops.concatenate([matrix, ops.expand_dims(bias, 1)], axis=1)

    def compute_output_spec(self, states, labels, training=False):
        return keras.KerasTensor(labels.shape, dtype=at_least_float32(self.compute_dtype))


def _logits_bytes():
    is_on_gpu = keras.backend.backend() == "jax" and jax.default_backend() == "gpu"
    return (_GPU_FACTOR if is_on_gpu else 1) * LOGITS_BYTES


def _product(matrix, states):
    return ops.matmul(states, ops.transpose(matrix))


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


def _fused_losses(states, embeddings, labels, is_token, training, smoothing, slice_size, r_drop):
    """Returns the losses, computed without padding; in training, together with the gradient."""
    positions = tf.where(is_token)
    tokens, token_labels = tf.gather_nd(states, positions), tf.gather_nd(labels, positions)
    embeddings = tf.convert_to_tensor(embeddings)
    if training:
        dtypes = tokens.dtype.name, embeddings.dtype.name
        token_losses = _token_losses(
            embeddings.shape, tokens.shape[1:], *dtypes, slice_size, r_drop
        )
        losses = token_losses(tokens, embeddings, token_labels, smoothing)
    else:
        ones = tf.ones_like(token_labels, at_least_float32(tokens.dtype))
        losses = _in_slices(tokens, embeddings, token_labels, ones, smoothing, slice_size)
    losses = tf.scatter_nd(positions, losses, tf.shape(labels, positions.dtype))
    losses.set_shape(labels.shape)
    return losses


@functools.cache
def _token_losses(matrix_shape, token_shape, dtype, embeddings_dtype, slice_size, r_drop):
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
                arguments = tokens, embeddings, labels, factors, smoothing, slice_size
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


def _in_slices(
    tokens, embeddings, labels, factors, smoothing, slice_size, r_drop=0.0, with_gradient=False
):
    """Returns losses, and gradients of their sum weighted by `factors`, slice by slice."""
    matrix, wide = tf.cast(embeddings, tokens.dtype), factors.dtype
    matrix_sum = tf.reduce_sum(tf.cast(matrix, wide), axis=0)
    passes = 2 if r_drop else 1
    # The gradient of the logits is an array `[tokens, V]`, plus two numbers: one at each label, and
    # one everywhere.
    at_label, everywhere = (smoothing - 1.0) / passes, -smoothing / matrix.shape[0] / passes
    number = tf.shape(tokens)[0]
    count = tf.maximum(1, (number + slice_size - 1) // slice_size)  # A replica may have no token.
    arrays = [
        tf.TensorArray(kind, count, element_shape=shape, infer_shape=False)
        for kind, shape in ((factors.dtype, [None]), (tokens.dtype, [None, *tokens.shape[1:]]))
    ]

    def body(index, losses, token_gradients, dense_gradient, sparse_gradient):
        here = slice(index * slice_size, tf.minimum((index + 1) * slice_size, number))
        states = tf.reshape(tokens[here], [-1, tokens.shape[-1]])
        labels_here = tf.repeat(labels[here], passes)
        logits = tf.cast(tf.matmul(states, matrix, transpose_b=True), wide)
        mean = tf.linalg.matvec(tf.cast(states, wide), matrix_sum / matrix.shape[0])
        loss, by_logits = _losses_and_softmax(labels_here, logits, mean, smoothing)
        if r_drop:
            loss, by_logits = _with_divergences(loss, by_logits, logits, r_drop)
        losses = losses.write(index, loss)
        if with_gradient:
            factors_here = tf.repeat(factors[here], passes)[:, None]
            by_states, dense, sparse = gradients(states, labels_here, by_logits, factors_here)
            by_states = tf.reshape(by_states, [-1, *tokens.shape[1:]])
            token_gradients = token_gradients.write(index, by_states)
            dense_gradient += dense
            sparse_gradient += sparse
        return index + 1, losses, token_gradients, dense_gradient, sparse_gradient

    def gradients(states, labels, by_logits, factors):
        """Returns the gradient of the states, and of the matrix by `by_logits` and by the rest."""
        dtype, rounded = states.dtype, tf.cast(by_logits, states.dtype)
        at_labels = tf.fill(tf.shape(labels), at_label)
        if dtype != wide:  # At the labels, the rounding error is added back.
            at_labels += tf.gather(by_logits, labels, batch_dims=1)
            at_labels -= tf.cast(tf.gather(rounded, labels, batch_dims=1), wide)
        at_labels = at_labels[:, None]
        others = at_labels * tf.cast(tf.gather(matrix, labels), wide) + everywhere * matrix_sum
        # The small matrices are scaled instead of the large one.
        by_states = (tf.cast(tf.matmul(rounded, matrix), wide) + others) * factors
        scaled = tf.cast(states, wide) * factors
        # In this order oneDNN copies the small matrix, not the large one.
        dense = tf.cast(tf.matmul(tf.cast(scaled, dtype), rounded, transpose_a=True), wide)
        sparse = tf.math.unsorted_segment_sum(at_labels * scaled, labels, matrix.shape[0])
        sparse += everywhere * tf.reduce_sum(scaled, axis=0)
        return tf.cast(by_states, dtype), dense, sparse

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
    return losses + smoothing * (label_logits - mean), softmax


def _with_divergences(losses, softmax, logits, alpha):
    """Returns `_r_drop_losses` of pairs of passes, and the part of the gradient for each logit."""
    p, q = tf.unstack(tf.reshape(softmax, [-1, 2, softmax.shape[-1]]), axis=1)
    first, second = tf.unstack(tf.reshape(logits, [-1, 2, logits.shape[-1]]), axis=1)
    difference = first - second
    # KL(p || q) + KL(q || p) = sum((p - q) * difference): the normalizers cancel.
    of_p, of_q = (tf.reduce_sum(shares * difference, axis=-1, keepdims=True) for shares in (p, q))
    share = 2 / alpha + 1
    by_first = p * (difference + (share - of_p)) - q
    by_second = q * ((share + of_q) - difference) - p
    by_logits = tf.reshape(tf.stack([by_first, by_second], axis=1), tf.shape(softmax))
    losses = tf.reduce_mean(tf.reshape(losses, [-1, 2]), axis=1)
    return losses + alpha / 4 * tf.squeeze(of_p - of_q, 1), alpha / 4 * by_logits
