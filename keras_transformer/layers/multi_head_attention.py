"""Multi-head attention, section 3.2.2, with the caches of decoding."""

from typing import Any

import keras
from keras import ops

from keras_transformer.layers.caches import CompleteCache, FixedCache, GrowingCache
from keras_transformer.layers.checks import check_built, check_positive_integer, check_rank
from keras_transformer.layers.configured_layer import KernelLayer, TracedLayer
from keras_transformer.layers.dtypes import Tensor
from keras_transformer.layers.kernels.projection import first_number, project, project_together
from keras_transformer.layers.kernels.shapes import reshape
from keras_transformer.layers.masks import causal_mask, combine_masks, keys_mask
from keras_transformer.layers.scaled_dot_product_attention import ScaledDotProductAttention


@keras.saving.register_keras_serializable(package="keras_transformer")
class MultiHeadAttention(TracedLayer, KernelLayer):
    """Attends from `query` to `value` with several heads.

    `MultiHead(Q, K, V) = Concat(head_1, ..., head_h) . W^O`, each head attending with its own
    projections of queries, keys and values. The kernels are matrices `[input_dim, heads * dim]`,
    head-major, so that Glorot initialisation sees the fan-in and fan-out of the paper's maps.

    Differs from `keras.layers.MultiHeadAttention`: no biases by default, a fully masked query
    gets exact zeros, `dropout` follows `use_bias` in the arguments, and there is a cache.

    Args:
        num_heads: Number of heads.
        key_dim: Size of the queries and keys of a head.
        value_dim: Size of the values of a head; None for `key_dim`.
        use_bias: Whether the four projections have biases.
        dropout: Dropout rate of the attention weights.
        seed: Integer seed of the dropout, or None.
        **kwargs: `kernel_initializer` and `kernel_regularizer` of the four matrices,
            `bias_initializer`, and the arguments of `keras.layers.Layer`.

    Call arguments:
        query: `[batch, query_length, d_model]`.
        value: `[batch, key_length, value_width]`; None to attend to the cache alone.
        key: `[batch, key_length, key_width]`; None for `value`.
        attention_mask: bool `[batch or 1, query_length or 1, key_length]`, `True` = attend. With
            a cache, `key_length` counts the cached positions as well.
        use_causal_mask: Whether a query may attend only to its own and earlier positions.
        cache: From `make_cache` or an earlier call, or None. The keys and values of `value` are
            appended to the cache.
        return_attention_scores: Whether to return the attention weights as well.
        training: Whether to drop.

    Returns:
        `[batch, query_length, d_model]`, as wide as the query; with
        `return_attention_scores=True` a tuple of that and the weights
        `[batch, num_heads, query_length, key_length]`; with a cache a tuple of that and the new
        cache.

    Raises:
        ValueError: If both a cache and attention scores are asked for, or an argument is not
            allowed.

    Example:

    >>> layer = keras_transformer.layers.MultiHeadAttention(num_heads=8, key_dim=64)
    >>> states = keras.random.normal((2, 5, 512))
    >>> ops.shape(layer(states, states, use_causal_mask=True))
    (2, 5, 512)

    Reference: Vaswani et al. (2017), section 3.2.2.
    """

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        use_bias: bool = False,
        dropout: float = 0.0,
        *,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_positive_integer("key_dim", key_dim)
        self._keep(
            num_heads=num_heads,
            key_dim=key_dim,
            value_dim=key_dim if value_dim is None else value_dim,
            use_bias=use_bias,
            dropout=dropout,
            seed=seed,
        )
        self.attention = ScaledDotProductAttention(
            dropout, seed=seed, dtype=self.dtype_policy, name="attention"
        )

    def build(self, query_shape: tuple, value_shape: tuple, key_shape: tuple | None = None) -> None:
        d_model = query_shape[-1]
        key_width = self.num_heads * self.key_dim
        value_width = self.num_heads * self.value_dim
        key_input_dim = (key_shape or value_shape)[-1]
        self.query_kernel, self.query_bias = self._add_map("query", d_model, key_width)
        self.key_kernel, self.key_bias = self._add_map("key", key_input_dim, key_width)
        self.value_kernel, self.value_bias = self._add_map("value", value_shape[-1], value_width)
        self.output_kernel, self.output_bias = self._add_map("output", value_width, d_model)
        self.built = True

    def _add_map(self, name, input_dim, output_dim):
        kernel = self._add_kernel(f"{name}_kernel", input_dim, output_dim)
        return kernel, self._add_bias(f"{name}_bias", output_dim)

    def call(
        self,
        query: Tensor,
        value: Tensor | None,
        key: Tensor | None = None,
        attention_mask: Tensor | None = None,
        use_causal_mask: bool = False,
        cache: GrowingCache | FixedCache | CompleteCache | None = None,
        return_attention_scores: bool = False,
        value_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
    ) -> Tensor | tuple:
        self._check_call(value, cache, use_causal_mask, return_attention_scores)
        check_rank("query", query, "[batch, query_length, d_model]")
        check_rank("value", value, "[batch, key_length, value_width]")
        check_rank("attention_mask", attention_mask, "[batch, query_length, key_length]")
        if value is None:
            return self._attend_to_cache(query, attention_mask, cache), cache
        if value is query and key is None:
            queries, keys, values = self._project(query, ("query", "key", "value"))
        else:
            [queries] = self._project(query, ("query",))
            keys, values = self._project_value(value, key)
        query_length = ops.shape(query)[1]
        if cache is not None:
            cache = cache.extend(keys, values)
            keys, values = cache.keys, cache.values
            implied_mask = cache.mask(query_length, use_causal_mask)
        else:  # Implicit masks, [batch, key_length], do not cover cached keys.
            causal = causal_mask(query_length, ops.shape(keys)[2], 0) if use_causal_mask else None
            implied_mask = keys_mask(causal, value_mask, key_mask)
        mask = combine_masks(attention_mask, implied_mask)
        options = {"return_attention_scores": return_attention_scores}
        outputs = self.attention(queries, keys, values, attention_mask=mask, **options)
        if return_attention_scores:
            return self._merge_heads(outputs[0]), outputs[1]
        outputs = self._merge_heads(outputs)
        return outputs if cache is None else (outputs, cache)

    def _check_call(self, value, cache, use_causal_mask, return_attention_scores):
        if cache is not None and return_attention_scores:
            raise ValueError(
                "A call returns the attention scores or a cache, not both. Received: "
                f"return_attention_scores={return_attention_scores!r} and a cache"
            )
        if value is None and cache is None:
            raise ValueError("`value` may be None only with a cache. Received: value=None")
        if value is None and use_causal_mask:
            raise ValueError(
                "With value=None queries have no positions among the keys of the cache. "
                "Received: use_causal_mask=True, value=None"
            )

    def make_cache(
        self,
        value: Tensor | None = None,
        key: Tensor | None = None,
        batch_size: Any = None,
        max_length: Any = None,
    ) -> GrowingCache | FixedCache | CompleteCache:
        """Returns a cache for `call`: keys and values computed once, to be attended to many times.

        Args:
            value: `[batch, key_length, value_width]`, whose keys and values fill the cache (for
                cross-attention); None for an empty cache (for self-attention).
            key: As in `call`.
            batch_size: Number of rows of an empty cache.
            max_length: Number of positions of an empty cache of fixed size, for backends that
                compile fixed shapes; None for one that grows with each call.

        Returns:
            A named tuple of `keys` and `values`: complete, of fixed size, or growing.
        """
        check_built(self)
        if value is not None:
            heads = self._project_value(value, key)
            # On JAX and torch Keras computes float64 in float32.
            return CompleteCache(*(ops.cast(one, self.compute_dtype) for one in heads))
        length = max_length
        if max_length is None:
            # 0, computed from a weight so that no graph folds it: the cache can grow in a loop.
            number = first_number(self.query_kernel)
            length = ops.cast(number < number, "int32")
        leading = (batch_size, self.num_heads, length)
        keys = ops.zeros((*leading, self.key_dim), dtype=self.compute_dtype)
        values = ops.zeros((*leading, self.value_dim), dtype=self.compute_dtype)
        if max_length is None:
            return GrowingCache((keys, keys), (values, values))
        return FixedCache(keys, values, ops.zeros((), dtype="int32"))

    def _project_value(self, value, key):
        """Returns the keys and values of all heads, `[batch, num_heads, key_length, dim]`."""
        if key is None or key is value:
            return self._project(value, ("key", "value"))
        return (*self._project(key, ("key",)), *self._project(value, ("value",)))

    def _project(self, inputs, names):
        """Returns the queries, keys or values of all heads, `[batch, num_heads, length, dim]`."""
        # Keras casts only floats, and only inside `__call__`; caches are made outside of it.
        inputs = ops.cast(inputs, self.compute_dtype)
        # Before the projection, because the ONNX export of Keras loses its shape.
        leading = ops.shape(inputs)[:2]
        kernels = tuple(getattr(self, f"{name}_kernel") for name in names)
        biases = tuple(getattr(self, f"{name}_bias") for name in names)
        outputs = project_together(inputs, kernels, biases)
        return [self._split_heads(one, leading) for one in outputs]

    def _attend_to_cache(self, query, attention_mask, cache):
        """Attends to the cache alone; each of its rows may serve several rows of the query.

        Beams of one sentence share its keys and values: they are folded into the query axis.
        A mask then has to be the same for all queries, `[batch or 1, 1, key_length]`.
        """
        query_shape = ops.shape(query)
        keys = cache.keys
        cache_batch = ops.shape(keys[0] if isinstance(keys, tuple) else keys)[0]
        folded = reshape(query, (cache_batch, -1, query.shape[-1]))
        [queries] = self._project(folded, ("query",))
        outputs = self.attention(queries, keys, cache.values, attention_mask=attention_mask)
        return reshape(self._merge_heads(outputs), query_shape)

    def _split_heads(self, inputs, leading):
        """Returns `[batch, length, heads * dim]` as `[batch, heads, length, dim]`."""
        (batch, length), dim = leading, inputs.shape[-1] // self.num_heads
        if inputs.shape[1] == 1:  # Nothing to move, as in every step of decoding.
            return reshape(inputs, (batch, self.num_heads, 1, dim))
        heads = reshape(inputs, (batch, length, self.num_heads, dim))
        return ops.transpose(heads, (0, 2, 1, 3))

    def _merge_heads(self, inputs):
        """Returns `[batch, heads, length, value_dim]` as `[batch, length, d_model]`."""
        batch, _, length, _ = ops.shape(inputs)
        merged = inputs if inputs.shape[2] == 1 else ops.transpose(inputs, (0, 2, 1, 3))
        merged = reshape(merged, (batch, length, self.num_heads * self.value_dim))
        return project(merged, self.output_kernel, self.output_bias, (batch, length))

    def compute_output_shape(
        self, query_shape: tuple, value_shape: tuple, key_shape: tuple | None = None
    ) -> tuple:
        return query_shape
