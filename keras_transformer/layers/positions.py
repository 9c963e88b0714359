"""Positions: added to embedded tokens (section 3.5), or used inside self-attention."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_transformer import checks
from keras_transformer.layers import backend_operations
from keras_transformer.layers.tensors import Tensor, at_least_float32, check_shape, reshape

_LEADING_BITS = 8


def position_angles(positions: Tensor, frequencies: np.ndarray, dtype: str) -> Tensor:
    """Returns `positions * frequencies` minus whole turns, up to a few rounding errors of `dtype`.

    In float32 the plain product has an error of 3e-4 at position 5,000. Here each frequency, in
    turns, is the sum of two parts of 8 bits and a small rest. Up to position 65,536, the product
    of a position and a part is exact, and so is its difference from whole turns.
    """
    positions = ops.expand_dims(ops.cast(positions, dtype), -1)
    rest, turns = frequencies / (2 * math.pi), 0.0
    for _ in range(2):
        mantissa, exponent = np.frexp(rest)
        part = np.ldexp(np.round(np.ldexp(mantissa, _LEADING_BITS)), exponent - _LEADING_BITS)
        product = positions * ops.convert_to_tensor(part, dtype=dtype)
        turns = turns + (product - ops.round(product))
        rest = rest - part
    small = positions * ops.convert_to_tensor(rest, dtype=dtype)
    return (turns + small) * (2 * math.pi)


@keras.saving.register_keras_serializable(package="keras_transformer")
class SinusoidalPositionEncoding(keras.layers.Layer):
    """Adds sines and cosines of the position to the inputs.

    `PE(pos, 2i) = sin(pos / 10000^(2i / d_model))`, `PE(pos, 2i + 1) = cos(...)`, from position 0.
    Up to position 65,536 it is exact, apart from the rounding to the compute dtype.

    Args:
        max_wavelength: Largest wavelength divided by 2 pi; 10,000 in the paper.

    Call arguments:
        inputs: `[batch, length, d_model]`, `d_model` even; the outputs have the same shape.
        positions: int32 `[length]` or `[batch, length]`; None for 0 to length - 1.

    Example:

    >>> layer = keras_transformer.layers.SinusoidalPositionEncoding()
    >>> ops.shape(layer(keras.ops.zeros((1, 10, 512))))
    (1, 10, 512)

    Reference: Vaswani et al. (2017), section 3.5.
    """

    def __init__(self, max_wavelength: float = 10_000, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        checks.check_positive_number("max_wavelength", max_wavelength)
        self.supports_masking = True
        self.max_wavelength = max_wavelength

    def build(self, inputs_shape: tuple) -> None:
        if inputs_shape[-1] % 2:
            rule = "The last axis of `inputs` must be even, for pairs of sine and cosine"
            raise ValueError(f"{rule}. Received: inputs_shape={tuple(inputs_shape)}")

    def call(self, inputs: Tensor, positions: Tensor | None = None) -> Tensor:
        check_shape("inputs", inputs, "[batch, length, d_model]")
        inputs = ops.cast(inputs, self.compute_dtype)  # Keras casts only floats.
        d_model = inputs.shape[-1]
        if positions is None:
            positions = ops.arange(ops.shape(inputs)[1], dtype="int32")
        frequencies = float(self.max_wavelength) ** (-np.arange(0, d_model, 2) / d_model)
        angles = position_angles(positions, frequencies, at_least_float32(self.compute_dtype))
        encoding = ops.stack([ops.sin(angles), ops.cos(angles)], axis=-1)
        encoding = reshape(encoding, (*ops.shape(positions), d_model))
        # Not `ops.add`: on TensorFlow it mistakes an encoding of length 0 for a bias.
        return inputs + ops.cast(encoding, inputs.dtype)

    def compute_output_shape(self, inputs_shape: tuple) -> tuple:
        return inputs_shape

    def get_config(self) -> dict:
        return {**super().get_config(), "max_wavelength": self.max_wavelength}


@keras.saving.register_keras_serializable(package="keras_transformer")
class LearnedPositionEmbedding(keras.layers.Layer):
    """Adds a learned vector per position to the inputs.

    Args:
        max_length: Number of positions in the table.
        embeddings_initializer: Initializer of the table; None for
            `RandomNormal(stddev=d_model**-0.5)`, as in `TiedEmbedding`.

    Call arguments:
        inputs: `[batch, length, d_model]`; the outputs have the same shape.
        positions: int32 `[length]` or `[batch, length]`; None for 0 to length - 1, where a length
            above `max_length` is an error.

    Example:

    >>> layer = keras_transformer.layers.LearnedPositionEmbedding(max_length=256)
    >>> ops.shape(layer(keras.ops.zeros((1, 10, 512))))
    (1, 10, 512)

    Reference: Vaswani et al. (2017), section 3.5 and Table 3 row (E), after Gehring et al. (2017).
    """

    def __init__(
        self, max_length: int, embeddings_initializer: str | Callable | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        checks.check_positive_integer("max_length", max_length)
        self.supports_masking = True
        self.max_length = max_length
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)

    def build(self, inputs_shape: tuple) -> None:
        d_model = inputs_shape[-1]
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(self.max_length, d_model),
            initializer=self.embeddings_initializer
            or keras.initializers.RandomNormal(stddev=d_model**-0.5),
        )

    def call(self, inputs: Tensor, positions: Tensor | None = None) -> Tensor:
        check_shape("inputs", inputs, "[batch, length, d_model]")
        inputs = ops.cast(inputs, self.compute_dtype)  # Keras casts only floats.
        if positions is None:
            # On torch, Keras infers shapes with meta tensors and makes unknown lengths up.
            if keras.backend.backend() != "torch" or inputs.device.type != "meta":
                self._check_length(inputs.shape)
            length = backend_operations.checked_length(inputs, self.max_length, self._too_long())
            is_checked = inputs.shape[1] is not None
            positions = ops.arange(length, dtype="int32")
        else:
            is_checked, positions = False, ops.cast(positions, "int32")
        vectors = ops.take(self.embeddings, positions, axis=0)
        if not is_checked:  # XLA repeats the last position.
            is_known = ops.expand_dims(positions < self.max_length, -1)
            vectors = ops.where(is_known, vectors, float("nan"))
        # Not `ops.add`: on TensorFlow it mistakes vectors of length 0 for a bias.
        return inputs + vectors

    def _check_length(self, inputs_shape):
        length = inputs_shape[1]
        # An unknown length is None, and a symbol where Keras infers shapes on JAX.
        if isinstance(length, int) and length > self.max_length:
            raise ValueError(f"{self._too_long()} Received: inputs.shape={tuple(inputs_shape)}")

    def _too_long(self):
        return f"`inputs` are longer than the table of positions, max_length={self.max_length}."

    def compute_output_shape(self, inputs_shape: tuple) -> tuple:
        self._check_length(inputs_shape)
        return inputs_shape

    def get_config(self) -> dict:
        initializer = keras.initializers.serialize(self.embeddings_initializer)
        options = {"max_length": self.max_length, "embeddings_initializer": initializer}
        return {**super().get_config(), **options}


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

    def build(self, key_shape: tuple, value_shape: tuple) -> None:
        """Makes the weights, if there are any.

        Args:
            key_shape, value_shape: `(None, heads, None, key_dim)` and the same with `value_dim`.
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
        cosines = ops.repeat(ops.cast(ops.cos(angles), states.dtype), 2, axis=-1)
        sines = ops.repeat(ops.cast(ops.sin(angles), states.dtype), 2, axis=-1)
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
