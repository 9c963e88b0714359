"""Dropout and layer normalization: those of Keras with other kernels on some backends."""

from typing import Any

import keras
from keras import ops

from keras_transformer.checks import check_positive_number, check_rate, check_seed
from keras_transformer.layers import backend_operations
from keras_transformer.layers.tensors import Tensor


# Keras names the state after the class; `Model.export` refuses names with a leading underscore.
class ReplicaSeedGenerator(keras.random.SeedGenerator):
    """A seed generator whose seeds differ between the replicas of a `tf.distribute` strategy."""

    def __init__(self, seed: int | None = None) -> None:
        with backend_operations.short_names():
            super().__init__(seed)

    def next(self, ordered: bool = True) -> Tensor:
        return backend_operations.replica_seed(super().next(ordered))


@keras.saving.register_keras_serializable(package="keras_transformer")
class Dropout(keras.layers.Layer):
    """`keras.layers.Dropout` with another mask on every replica of a `MirroredStrategy`.

    Args:
        rate: Share of the inputs that is set to 0; the others are scaled by `1 / (1 - rate)`.
        seed: Integer seed, or None for a random one.

    Example:

    >>> layer = keras_transformer.layers.Dropout(0.1, seed=1)
    >>> outputs = layer(keras.ops.ones((2, 3, 4)), training=True)

    Reference: Vaswani et al. (2017), section 5.4.
    """

    def __init__(self, rate: float, seed: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_rate("rate", rate)
        check_seed("seed", seed)
        self.supports_masking = True
        self.rate = rate
        self.seed = seed
        if rate > 0:
            self.seed_generator = ReplicaSeedGenerator(seed)

    def call(self, inputs: Tensor, training: bool | None = False) -> Tensor:
        inputs = ops.cast(inputs, self.compute_dtype)  # Keras casts only floats.
        if not training or self.rate == 0:
            return inputs
        return backend_operations.dropout(inputs, self.rate, self.seed_generator)

    def compute_output_shape(self, inputs_shape: tuple) -> tuple:
        return inputs_shape

    def get_config(self) -> dict:
        return {**super().get_config(), "rate": self.rate, "seed": self.seed}


@keras.saving.register_keras_serializable(package="keras_transformer")
class LayerNormalization(keras.layers.LayerNormalization):
    """`keras.layers.LayerNormalization` with a faster gradient on TensorFlow, and JAX on a CPU.

    It is faster if the last axis is normalized with both `gamma` and `beta`, and `training` is
    True. Weights and results are those of Keras.

    Args:
        epsilon: Added to the variance; 1e-6 as in tensor2tensor, not 1e-3 as in Keras.
        **kwargs: As in `keras.layers.LayerNormalization`.

    Example:

    >>> layer = keras_transformer.layers.LayerNormalization()
    >>> outputs = layer(keras.random.normal((2, 5, 512)), training=True)

    Reference: Ba et al. (2016), equations (3) and (4); Vaswani et al. (2017), section 5.4.
    """

    def __init__(self, epsilon: float = 1e-6, **kwargs: Any) -> None:
        check_positive_number("epsilon", epsilon)
        super().__init__(epsilon=epsilon, **kwargs)

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        inputs = ops.cast(inputs, self.compute_dtype)  # Keras would round the result to integers.
        outputs = backend_operations.layer_normalization(inputs, self, training)
        return super().call(inputs) if outputs is None else outputs
