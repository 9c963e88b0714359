"""Positions inside self-attention: a rotation of queries and keys, or vectors of distances."""

import math
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_transformer import checks
from keras_transformer.layers.position_encoding import position_angles
from keras_transformer.layers.tensors import Tensor, at_least_float32


class DistanceVectors(NamedTuple):
    """Vectors of distances, added to keys and values (Shaw et al., 2018, equations 3 and 4)."""

    keys: Tensor  # [query_length, key_length, key_dim]
    values: Tensor  # [query_length, key_length, value_dim]

    def scores(self, query: Tensor) -> Tensor:
        """Returns the products of queries `[..., query_length, key_dim]` and the key vectors."""
        return _products(query, ops.swapaxes(self.keys, -1, -2))

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Returns the value vectors, summed with weights `[..., query_length, key_length]`."""
        return _products(weights, self.values)


def _products(vectors, matrices):
    """Returns the products of `[..., length, n]` and `[length, n, m]`: `[..., length, m]`.

    Not by `einsum`: in bfloat16 on a CPU with AMX, TensorFlow 2.21 multiplies one vector of an odd
    length wrongly if it broadcasts the matrices.
    """
    *leading, length, width = ops.shape(vectors)
    # [..., length, n] -> [length, vectors, n]
    vectors = ops.reshape(ops.moveaxis(vectors, -2, 0), (length, math.prod(leading), width))
    products = ops.matmul(vectors, ops.cast(matrices, vectors.dtype))
    # [length, vectors, m] -> [length, ..., m]
    products = ops.reshape(products, (length, *leading, ops.shape(matrices)[-1]))
    return ops.moveaxis(products, 0, -2)


class AttentionPosition(keras.layers.Layer):
    """Base class of the positions that `MultiHeadAttention` takes, for self-attention.

    A subclass overrides `rotate` or `between`.

    Example:

    >>> position = keras_transformer.layers.RotaryPosition()
    >>> isinstance(position, keras_transformer.layers.AttentionPosition)
    True
    """

    def rotate(self, states: Tensor, positions: Tensor) -> Tensor:
        """Returns queries or keys with their positions applied.

        Args:
            states, positions: `[batch, heads, length, key_dim]` and int32 `[length]`.
        """
        return states

    def between(self, query_positions: Tensor, key_positions: Tensor) -> DistanceVectors | None:
        """Returns the vectors of the distances between positions, or None if there are none.

        Args:
            query_positions, key_positions: int32 `[query_length]` and `[key_length]`.
        """
        return None


@keras.saving.register_keras_serializable(package="keras_transformer")
class RotaryPosition(AttentionPosition):
    """Rotates pairs of features in queries and keys by angles that grow with the position.

    The product of a query and a key then depends on the two positions only through their distance.
    Pair i is rotated by the angle `position / max_wavelength^(2i / key_dim)`.

    Args:
        max_wavelength: Largest wavelength divided by 2 pi.

    Example:

    >>> from keras_transformer.layers import EncoderBlock, RotaryPosition
    >>> block = EncoderBlock(num_heads=8, intermediate_dim=2048, position=RotaryPosition())

    Reference: Su et al. (2021), "RoFormer".
    """

    def __init__(self, max_wavelength: float = 10_000, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        checks.check_positive_number("max_wavelength", max_wavelength)
        self.max_wavelength = max_wavelength

    def get_config(self) -> dict:
        return {**super().get_config(), "max_wavelength": self.max_wavelength}

    def build(self, key_shape: tuple, value_shape: tuple) -> None:
        rule = "even for rotary positions, which turn pairs"
        checks.check_argument(key_shape[-1] % 2 == 0, "key_dim", rule, key_shape[-1])

    def rotate(self, states: Tensor, positions: Tensor) -> Tensor:
        dim, dtype = states.shape[-1], at_least_float32(self.compute_dtype)
        frequencies = float(self.max_wavelength) ** (-np.arange(0, dim, 2) / dim)
        angles = position_angles(positions, frequencies, dtype)  # [length, dim / 2]
        waves = (ops.cast(wave(angles), states.dtype) for wave in (ops.cos, ops.sin))
        cosines, sines = (ops.repeat(wave, 2, axis=-1) for wave in waves)
        even, odd = states[..., 0::2], states[..., 1::2]
        perpendicular = ops.reshape(ops.stack([-odd, even], axis=-1), ops.shape(states))
        return states * cosines + perpendicular * sines


@keras.saving.register_keras_serializable(package="keras_transformer")
class RelativePosition(AttentionPosition):
    """Adds a learned vector of the distance to each key and to each value.

    All heads share the vectors. Beyond `max_distance`, all distances on one side share a vector.

    Args:
        max_distance: Greatest distance with a vector of its own.

    Example:

    >>> from keras_transformer.layers import EncoderBlock, RelativePosition
    >>> block = EncoderBlock(num_heads=8, intermediate_dim=2048, position=RelativePosition(16))

    Reference: Shaw et al. (2018), "Self-Attention with Relative Position Representations".
    """

    def __init__(self, max_distance: int = 16, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        checks.check_positive_integer("max_distance", max_distance)
        self.max_distance = max_distance

    def get_config(self) -> dict:
        return {**super().get_config(), "max_distance": self.max_distance}

    def build(self, key_shape: tuple, value_shape: tuple) -> None:
        number = 2 * self.max_distance + 1
        self.key_vectors, self.value_vectors = (
            self.add_weight(name=name, shape=(number, shape[-1]), initializer="glorot_uniform")
            for name, shape in (("key_vectors", key_shape), ("value_vectors", value_shape))
        )

    def between(self, query_positions: Tensor, key_positions: Tensor) -> DistanceVectors:
        distance = key_positions - ops.expand_dims(query_positions, 1)
        indices = ops.clip(distance, -self.max_distance, self.max_distance) + self.max_distance
        tables = self.key_vectors, self.value_vectors
        vectors = (ops.take(table, indices, axis=0) for table in tables)
        return DistanceVectors(*(ops.cast(array, self.compute_dtype) for array in vectors))


def check_position(position: AttentionPosition | None) -> None:
    """Raises `ValueError` unless `position` is an `AttentionPosition` or None."""
    is_position = position is None or isinstance(position, AttentionPosition)
    rule = "an `AttentionPosition`, such as `RotaryPosition()`, or None"
    checks.check_argument(is_position, "position", rule, position)
