"""Dropout that is right on several devices."""

import keras
from keras import ops

from keras_transformer.layers.checks import check_rate, check_seed


class ReplicaSeedGenerator(keras.random.SeedGenerator):
    """A seed generator whose seeds differ between the replicas of a `tf.distribute` strategy.

    Keras keeps the state of a seed generator equal on all replicas, so that without this they
    would all draw the same dropout mask.

    The name has no leading underscore: Keras names the state after the class, and `Model.export`
    refuses names that begin with one.
    """

    def next(self, ordered=True):
        seed = super().next(ordered)
        if keras.backend.backend() != "tensorflow":
            return seed
        import tensorflow as tf

        context = tf.distribute.get_replica_context()
        if context is None or context.num_replicas_in_sync == 1:
            return seed
        replica = tf.cast(context.replica_id_in_sync_group, seed.dtype)
        # An odd constant keeps the first words of the seeds of up to 2^31 replicas apart.
        return seed + tf.stack([replica * 1_640_531_527, tf.zeros_like(replica)])


def _tensorflow_dropout(inputs, rate, seed):
    """Drop with 16 random bits for each input, half as many as TensorFlow draws.

    Drawing is most of the cost of dropout on a CPU. The rate is rounded to a multiple of 2^-16
    and the scale is that of the rounded rate, so that the expectation stays exact.
    """
    import tensorflow as tf

    size = tf.size(inputs)
    words = tf.random.stateless_uniform(
        [(size + 1) // 2], seed=seed, minval=None, maxval=None, dtype=tf.int32
    )
    halves = tf.reshape(tf.bitcast(words, tf.uint16), [-1])[:size]
    threshold = min(round(rate * 2**16), 2**16 - 1)
    keep = tf.reshape(halves >= tf.constant(threshold, tf.uint16), tf.shape(inputs))
    scale = tf.cast(2**16 / (2**16 - threshold), inputs.dtype)
    outputs = inputs * (tf.cast(keep, inputs.dtype) * scale)
    outputs.set_shape(inputs.shape)
    return outputs


@keras.saving.register_keras_serializable(package="keras_transformer")
class Dropout(keras.layers.Layer):
    """Drops inputs at random while training, with another mask on every replica.

    As `keras.layers.Dropout`, except that under `tf.distribute.MirroredStrategy` the replicas
    draw different masks.

    Args:
        rate: Share of the inputs that is set to 0; the others are scaled by `1 / (1 - rate)`.
        seed: Integer seed, or None for a random one.

    Call arguments:
        inputs: Floating tensor of any shape.
        training: Whether to drop.

    Returns:
        A tensor of the shape and dtype of `inputs`.

    Example:

    >>> layer = keras_transformer.layers.Dropout(0.1, seed=1)
    >>> outputs = layer(keras.ops.ones((2, 3, 4)), training=True)

    Reference: Vaswani et al. (2017), section 5.4.
    """

    def __init__(self, rate, seed=None, **kwargs):
        super().__init__(**kwargs)
        check_rate("rate", rate)
        check_seed(seed)
        self.rate = rate
        self.seed = seed
        self.supports_masking = True
        if rate > 0:
            self.seed_generator = ReplicaSeedGenerator(seed)

    def build(self, input_shape):
        self.built = True

    def call(self, inputs, training=False):
        inputs = ops.cast(inputs, self.compute_dtype)  # Keras casts floats alone.
        if not training or self.rate == 0:
            return inputs
        if keras.backend.backend() == "tensorflow":
            return _tensorflow_dropout(inputs, self.rate, self.seed_generator.next())
        return keras.random.dropout(inputs, self.rate, seed=self.seed_generator)

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {**super().get_config(), "rate": self.rate, "seed": self.seed}
