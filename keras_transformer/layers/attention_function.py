"""Attention functions: scores of queries and keys become weights of values, section 3.2.1."""

import abc
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_transformer import checks
from keras_transformer.layers import backend_operations
from keras_transformer.layers.blockwise_attention import (
    MASKED_SCORE,
    attend_by_blocks,
    attend_fused,
)
from keras_transformer.layers.dropout_and_normalization import Dropout
from keras_transformer.layers.positions import DistanceVectors, RelativePosition
from keras_transformer.layers.tensors import Tensor, at_least_float32, causal_mask, combine_masks

# Attention by blocks is the default from this length on.
_LONG = 4096
# The fused attention of JAX, and of torch in training on a CPU, is the default from these lengths.
# Shorter inputs would not fill their blocks.
_LONG_FOR_JAX = 64
_LONG_FOR_TORCH = 128


class AttentionFunction(keras.layers.Layer, abc.ABC):
    """Attends: `softmax(score(query, key)) . value`. A subclass implements `score`.

    The softmax is computed in at least float32. A query that may attend to no key gets exact
    zeros. Tensors may have further axes before the last two, such as the blocks of a window.

    Args:
        dropout: Dropout rate of the attention weights.
        seed: Integer seed of the dropout, or None.

    Call arguments:
        query: `[batch, heads, query_length, key_dim]`.
        key: `[batch, heads, key_length, key_dim]`, or a tuple of consecutive parts of it.
        value: `[batch, heads, key_length, value_dim]`, or a tuple of as many parts.
        attention_mask: bool `[batch or 1, query_length or 1, key_length]`, `True` = attend.
        use_causal_mask: Whether a query may attend only to its own and earlier positions.
        distances: `DistanceVectors` of queries and keys, or None.
        return_attention_scores: Whether to return the attention weights as well.
        training: Whether to apply dropout.

    Returns:
        `[batch, heads, query_length, value_dim]`. With `return_attention_scores=True`, a tuple of
        this tensor and the weights `[batch, heads, query_length, key_length]`.

    Example:

    >>> class Distance(keras_transformer.layers.AttentionFunction):
    ...     def score(self, query, key):
    ...         difference = ops.expand_dims(query, -2) - ops.expand_dims(key, -3)
    ...         return -ops.sum(difference**2, axis=-1)
    >>> query = keras.random.normal((2, 8, 5, 64))
    >>> ops.shape(Distance()(query, query, query))
    (2, 8, 5, 64)
    """

    def __init__(self, dropout: float = 0.0, seed: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        checks.check_rate("dropout", dropout)
        checks.check_seed("seed", seed)
        self.supports_masking = True
        self.dropout = dropout
        self.seed = seed
        self.dropout_layer = None
        if dropout:
            dtype = self.dtype_policy
            self.dropout_layer = Dropout(dropout, seed=seed, dtype=dtype, name="dropout")

    def build(self, query_shape: tuple, key_shape: tuple, value_shape: tuple) -> None:
        if self.dropout_layer is not None:
            self.dropout_layer.build((*query_shape[:-1], key_shape[-2]))

    def get_config(self) -> dict:
        return {**super().get_config(), "dropout": self.dropout, "seed": self.seed}

    @abc.abstractmethod
    def score(self, query: Tensor, key: Tensor) -> Tensor:
        """Returns the scores `[..., query_length, key_length]` of each query and key.

        Args:
            query, key: `[..., query_length, key_dim]` and `[..., key_length, key_dim]`.
        """

    def scale_queries(self, query: Tensor) -> Tensor:
        """Returns queries as they are multiplied by keys and by vectors of distances.

        Args:
            query: `[..., query_length, key_dim]`.
        """
        return query

    def call(
        self,
        query: Tensor,
        key: Tensor | tuple,
        value: Tensor | tuple,
        attention_mask: Tensor | None = None,
        use_causal_mask: bool = False,
        distances: DistanceVectors | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        key_parts = key if isinstance(key, tuple) else (key,)
        parts = [self.score(query, keys) for keys in key_parts]  # [batch, heads, query, key] each
        scores = parts[0] if len(parts) == 1 else ops.concatenate(parts, axis=-1)
        if distances is not None:
            scores = scores + distances.scores(self.scale_queries(query))
        scores = ops.cast(scores, at_least_float32(self.compute_dtype))
        if use_causal_mask:
            attention_mask = combine_masks(causal_mask(*ops.shape(scores)[-2:]), attention_mask)
        has_keys = None  # Without a mask, every query has keys.
        if attention_mask is not None:
            mask = ops.expand_dims(attention_mask, 1)  # [batch or 1, 1, query or 1, key]
            scores = scores + ops.where(mask, 0.0, ops.cast(MASKED_SCORE, scores.dtype))
            has_keys = ops.any(mask, axis=-1, keepdims=True)
        # Keras warns of a softmax over one key, which the first step of decoding has.
        has_one_key = scores.shape[-1] == 1
        softmax = backend_operations.softmax
        weights = ops.ones_like(scores) if has_one_key else softmax(scores, training)
        weights = ops.cast(weights, self.compute_dtype)
        if has_keys is not None and return_attention_scores:
            weights = ops.multiply(weights, ops.cast(has_keys, weights.dtype))
        if self.dropout_layer is not None:
            weights = self.dropout_layer(weights, training=training)
        values = value if isinstance(value, tuple) else (value,)
        if len(values) == 1:
            outputs = ops.matmul(weights, values[0])  # [batch, heads, query, value_dim]
        else:
            outputs = _sum_of_parts(weights, values)
        if distances is not None:
            outputs = outputs + distances.weighted_sum(weights)
        if has_keys is not None:
            outputs = ops.multiply(outputs, ops.cast(has_keys, outputs.dtype))
        return (outputs, weights) if return_attention_scores else outputs

    def compute_output_spec(
        self, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        if args or kwargs.get("return_attention_scores"):
            # Keras finds both outputs by tracing `call`.
            return keras.Operation.compute_output_spec(self, query, key, value, *args, **kwargs)
        # On torch, Keras traces with lengths that do not fit together where they are unknown.
        value = value[0] if isinstance(value, tuple) else value
        return keras.KerasTensor((*query.shape[:-1], value.shape[-1]), dtype=self.compute_dtype)


def _sum_of_parts(weights, parts):
    """Returns the weighted sum of values in consecutive parts."""
    start, products = 0, []
    for values in parts[:-1]:
        end = start + ops.shape(values)[2]
        products.append(ops.matmul(weights[..., start:end], values))
        start = end
    # The last part needs no end, which would take several operations in a graph.
    return sum(products, start=ops.matmul(weights[..., start:], parts[-1]))


@keras.saving.register_keras_serializable(package="keras_transformer")
class ScaledDotProductAttention(AttentionFunction):
    """Dot-product attention: `softmax(query . key^T / sqrt(key_dim)) . value`.

    It is called like an `AttentionFunction`.

    Args:
        dropout: Dropout rate of the attention weights.
        seed: Integer seed of the dropout, or None.
        scale: Factor of the scores; None for `1 / sqrt(key_dim)`, 1 for the plain dot product.
        flash_attention: Whether to avoid the matrix of all scores. True uses the fused attention of
            torch, or of JAX on a GPU; elsewhere, and for long inputs with a mask, it uses blocks,
            in memory that grows linearly with the length. None follows `keras.config`; by default
            it acts like True, but uses blocks only for known lengths from 4,096 on, JAX's only for
            known even lengths from 64 on, and torch's, in training on a CPU, only for lengths from
            128 on. Dropout and `distances` need all scores, and True refuses them.

    Example:

    >>> query = keras.random.normal((2, 8, 5, 64))
    >>> key = keras.random.normal((2, 8, 7, 64))
    >>> ops.shape(keras_transformer.layers.ScaledDotProductAttention()(query, key, key))
    (2, 8, 5, 64)

    Reference: Vaswani et al. (2017), section 3.2.1, equation (1).
    """

    def __init__(
        self,
        dropout: float = 0.0,
        seed: int | None = None,
        scale: float | None = None,
        flash_attention: bool | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(dropout, seed, **kwargs)
        if scale is not None:
            checks.check_positive_number("scale", scale)
        if flash_attention is not None:
            checks.check_boolean("flash_attention", flash_attention)
        self.scale = scale
        self.flash_attention = flash_attention
        if flash_attention and dropout:
            rule = "`flash_attention=True` is not supported with dropout of the attention weights"
            raise ValueError(f"{rule}. Received: {dropout=}")

    def get_config(self) -> dict:
        options = {"scale": self.scale, "flash_attention": self.flash_attention}
        return {**super().get_config(), **options}

    def call(
        self,
        query: Tensor,
        key: Tensor | tuple,
        value: Tensor | tuple,
        attention_mask: Tensor | None = None,
        use_causal_mask: bool = False,
        distances: DistanceVectors | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        if self.flash_attention and distances is not None:
            rule = "`flash_attention=True` is not supported with relative positions"
            raise ValueError(f"{rule}. Received: distances={distances}")
        is_plain = distances is None and not return_attention_scores and not self.dropout
        # The parts of a cache, and the blocks of a window, are too short to gain anything.
        is_whole = not isinstance(key, tuple) and len(query.shape) == 4
        inputs = query, key, value, attention_mask
        if is_plain and is_whole:
            attend = choose_flash_attention(self.flash_attention, training, *inputs)
            if attend is not None:
                scaled = self.scale_queries(query)
                return attend(scaled, key, value, attention_mask, use_causal_mask)
        return super().call(*inputs, use_causal_mask, distances, return_attention_scores, training)

    def scale_queries(self, query: Tensor) -> Tensor:
        # Scaling the queries is cheaper than scaling the scores, with the same result.
        return ops.multiply(query, query.shape[-1] ** -0.5 if self.scale is None else self.scale)

    def score(self, query: Tensor, key: Tensor) -> Tensor:
        return ops.matmul(self.scale_queries(query), ops.swapaxes(key, -1, -2))


def choose_flash_attention(
    flash_attention: bool | None,
    training: bool | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
) -> Callable | None:
    """Returns `attend_fused` or `attend_by_blocks`, or None to compute all scores."""
    if flash_attention is None:
        flash_attention = keras.config.is_flash_attention_enabled()  # None if it was not disabled.
    if flash_attention is False:
        return None
    lengths = query.shape[2], key.shape[2]
    # While JAX traces a functional model, an unknown length is an expression.
    is_known = all(isinstance(length, int) for length in lengths)
    is_long = is_known and lengths[0] * lengths[1] >= _LONG**2
    # The fused attention of JAX and of torch needs the full mask, `[queries, keys]`, which is too
    # large for long inputs.
    if _has_fused(key, value) and (mask is None or not is_long):
        if flash_attention or _is_fused_faster(query, lengths, is_known, training):
            return attend_fused
    return attend_by_blocks if flash_attention or is_long else None


def _is_fused_faster(query, lengths, is_known, training):
    if keras.backend.backend() == "torch":
        trains_on_cpu = training and query.device.type == "cpu"
        return not trains_on_cpu or lengths[0] * lengths[1] >= _LONG_FOR_TORCH**2
    # With a mask, JAX's fused attention has no gradient for odd lengths.
    is_even = is_known and lengths[0] % 2 == lengths[1] % 2 == 0
    return is_even and lengths[0] * lengths[1] >= _LONG_FOR_JAX**2


def _has_fused(key, value):
    if keras.backend.backend() != "jax":
        return keras.backend.backend() == "torch"
    try:
        return key.shape[-1] == value.shape[-1] and bool(keras.distribution.list_devices("gpu"))
    except RuntimeError:  # JAX raises it if there is no GPU.
        return False


@keras.saving.register_keras_serializable(package="keras_transformer")
class AdditiveAttention(AttentionFunction):
    """Scores keys by a network with one hidden layer: `softmax(v . tanh(query + key)) . value`.

    The projections of `MultiHeadAttention` are the first layer of the network, and each head has
    a vector v. The hidden layer needs `key_dim` times the memory of the scores.

    Args:
        dropout: Dropout rate of the attention weights.
        seed: Integer seed of the dropout, or None.

    Example:

    >>> from keras_transformer.layers import AdditiveAttention, MultiHeadAttention
    >>> layer = MultiHeadAttention(num_heads=8, key_dim=64, attention=AdditiveAttention())
    >>> states = keras.random.normal((2, 5, 512))
    >>> ops.shape(layer(states, states))
    (2, 5, 512)

    Reference: Bahdanau et al. (2015); Vaswani et al. (2017), section 3.2.1.
    """

    def build(self, query_shape: tuple, key_shape: tuple, value_shape: tuple) -> None:
        super().build(query_shape, key_shape, value_shape)
        _, num_heads, *_, key_dim = query_shape
        self.score_kernel = self.add_weight(
            name="score_kernel", shape=(num_heads, key_dim), initializer="glorot_uniform"
        )

    def score(self, query: Tensor, key: Tensor) -> Tensor:
        hidden = ops.tanh(ops.expand_dims(query, -2) + ops.expand_dims(key, -3))
        middle = (1,) * (len(hidden.shape) - 3)
        kernel = ops.reshape(self.score_kernel, (-1, *middle, query.shape[-1]))
        return ops.sum(hidden * ops.cast(kernel, hidden.dtype), axis=-1)


def check_attention(attention: Any, dropout: float, flash_attention: Any, position: Any) -> None:
    """Raises `ValueError` unless the arguments of `MultiHeadAttention` fit together."""
    is_function = attention is None or isinstance(attention, AttentionFunction)
    checks.check_argument(is_function, "attention", "an `AttentionFunction` or None", attention)
    if attention is not None and (dropout or flash_attention is not None):
        rule = "`dropout` and `flash_attention` are not allowed beside `attention`"
        raise ValueError(f"{rule}, which has its own. Received: {dropout=}, {flash_attention=}")
    is_product = attention is None or isinstance(attention, ScaledDotProductAttention)
    if isinstance(position, RelativePosition) and not is_product:
        raise ValueError(
            "`RelativePosition` adds to dot products, and needs a `ScaledDotProductAttention`. "
            f"Received: {attention=}"
        )
