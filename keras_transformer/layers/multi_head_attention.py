"""Multi-head attention, section 3.2.2, with the caches of decoding."""

import keras
from keras import ops

from keras_transformer.layers.checks import (
    check_boolean,
    check_built,
    check_positive_integer,
    check_rank,
    check_rate,
    check_seed,
)
from keras_transformer.layers.growing_cache import extend, length_of
from keras_transformer.layers.masks import causal_mask, combine_masks, padding_to_attention_mask
from keras_transformer.layers.projection import first_number, project, project_together
from keras_transformer.layers.scaled_dot_product_attention import ScaledDotProductAttention
from keras_transformer.layers.seeds import derive_initializer
from keras_transformer.layers.shapes import reshape


@keras.saving.register_keras_serializable(package="keras_transformer")
class MultiHeadAttention(keras.layers.Layer):
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
        kernel_initializer: Initialiser of the four matrices.
        bias_initializer: Initialiser of the biases.
        kernel_regularizer: Regulariser of the four matrices.
        seed: Integer seed of the dropout, or None.

    Call arguments:
        query: `[batch, query_length, d_model]`.
        value: `[batch, key_length, value_width]`; None to attend to what `cache` holds alone.
        key: `[batch, key_length, key_width]`; None for `value`.
        attention_mask: bool `[batch or 1, query_length or 1, key_length]`, `True` = attend. With
            a cache, `key_length` counts the cached positions as well.
        use_causal_mask: Whether a query may attend only to its own and earlier positions.
        cache: From `make_cache` or an earlier call, or None. The keys and values of `value` are
            put behind those of the cache.
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
        num_heads,
        key_dim,
        value_dim=None,
        use_bias=False,
        dropout=0.0,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        kernel_regularizer=None,
        seed=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_positive_integer("num_heads", num_heads)
        check_positive_integer("key_dim", key_dim)
        if value_dim is not None:
            check_positive_integer("value_dim", value_dim)
        check_boolean("use_bias", use_bias)
        check_rate("dropout", dropout)
        check_seed(seed)
        self.num_heads = num_heads
        self.key_dim = key_dim
        self.value_dim = value_dim or key_dim
        self.use_bias = use_bias
        self.dropout = dropout
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.seed = seed
        self.supports_masking = True
        self.attention = ScaledDotProductAttention(
            dropout, seed=seed, dtype=self.dtype_policy, name="attention"
        )

    def build(self, query_shape, value_shape, key_shape=None):
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
        kernel = self.add_weight(
            name=f"{name}_kernel",
            shape=(input_dim, output_dim),
            initializer=derive_initializer(self.kernel_initializer, f"{name}_kernel"),
            regularizer=self.kernel_regularizer,
        )
        if not self.use_bias:
            return kernel, None
        bias = self.add_weight(
            name=f"{name}_bias",
            shape=(output_dim,),
            initializer=derive_initializer(self.bias_initializer, f"{name}_bias"),
        )
        return kernel, bias

    def call(
        self,
        query,
        value,
        key=None,
        attention_mask=None,
        use_causal_mask=False,
        cache=None,
        return_attention_scores=False,
        training=None,
        value_mask=None,
        key_mask=None,
    ):
        if cache is not None and return_attention_scores:
            raise ValueError(
                "A call returns the attention scores or a cache, not both. Received: "
                f"return_attention_scores={return_attention_scores!r} and a cache"
            )
        if value is None and cache is None:
            raise ValueError("`value` may be None only with a cache. Received: value=None")
        check_rank("query", query, "[batch, query_length, d_model]")
        check_rank("value", value, "[batch, key_length, value_width]")
        check_rank("attention_mask", attention_mask, "[batch, query_length, key_length]")
        if cache is not None and value is None:
            if use_causal_mask:
                raise ValueError(
                    "With value=None queries have no positions among the keys of the cache. "
                    "Received: use_causal_mask=True, value=None"
                )
            return self._attend_to_cache(query, attention_mask, cache, training), cache
        if value is query and key is None:
            queries, keys, values = self._project(query, ("query", "key", "value"))
        else:
            [queries] = self._project(query, ("query",))
            keys, values = self._project_value(value, key)
        query_start = 0
        if cache is not None:
            cache, keys, values, query_start = self._extend(cache, keys, values)
            attention_mask = combine_masks(attention_mask, self._written(cache))
        # One query behind a cache that grows sees all there is: nothing comes after it.
        sees_all = cache is not None and "index" not in cache and query.shape[1] == 1
        if use_causal_mask and not sees_all:
            causal = causal_mask(ops.shape(query)[1], length_of(keys), query_start)
            attention_mask = combine_masks(attention_mask, causal)
        if cache is None:  # Implicit masks, [batch, key_length], know nothing of cached keys.
            keras_mask = combine_masks(value_mask, key_mask)
            attention_mask = combine_masks(attention_mask, padding_to_attention_mask(keras_mask))
        outputs = self.attention(
            queries,
            keys,
            values,
            attention_mask=attention_mask,
            return_attention_scores=return_attention_scores,
            training=training,
        )
        if return_attention_scores:
            return self._merge_heads(outputs[0]), outputs[1]
        return self._merge_heads(outputs) if cache is None else (self._merge_heads(outputs), cache)

    def make_cache(self, value=None, key=None, batch_size=None, max_length=None):
        """Return a cache for `call`: keys and values computed once, to be attended to many times.

        Args:
            value: `[batch, key_length, value_width]`, whose keys and values fill the cache (for
                cross-attention); None for an empty cache (for self-attention).
            key: As in `call`.
            batch_size: Rows of an empty cache.
            max_length: Positions of an empty cache of fixed size, for backends that compile
                fixed shapes; None for one that grows with each call.

        Returns:
            A dict: `"key"` `[batch, num_heads, length, key_dim]`, `"value"`
            `[batch, num_heads, length, value_dim]`, and for a cache of fixed size `"index"`, the
            number of positions written, int32.
        """
        check_built(self)
        if value is not None:
            heads = self._project_value(value, key)
            # On JAX and torch Keras computes float64 in float32.
            keys, values = (ops.cast(one, self.compute_dtype) for one in heads)
            return {"key": keys, "value": values}
        length = max_length
        if max_length is None:
            # 0, computed from a weight so that no graph folds it: the cache can grow in a loop.
            number = first_number(self.query_kernel)
            length = ops.cast(number < number, "int32")
        leading = (batch_size, self.num_heads, length)
        cache = {
            "key": ops.zeros((*leading, self.key_dim), dtype=self.compute_dtype),
            "value": ops.zeros((*leading, self.value_dim), dtype=self.compute_dtype),
        }
        if max_length is not None:
            cache["index"] = ops.zeros((), dtype="int32")
        return cache

    def _project_value(self, value, key):
        """Return the keys and values of all heads, `[batch, num_heads, key_length, dim]`."""
        if key is None or key is value:
            return self._project(value, ("key", "value"))
        return (*self._project(key, ("key",)), *self._project(value, ("value",)))

    def _project(self, inputs, names):
        """Return the queries, keys or values of all heads, `[batch, num_heads, length, dim]`."""
        # Keras casts floats alone, inside `__call__`; caches are made outside of it.
        inputs = ops.cast(inputs, self.compute_dtype)
        # Not the shape of what is projected: the ONNX export of Keras loses it.
        leading = ops.shape(inputs)[:2]
        kernels = tuple(getattr(self, f"{name}_kernel") for name in names)
        biases = tuple(getattr(self, f"{name}_bias") for name in names)
        return [
            self._split_heads(
                projected, leading, self.value_dim if name == "value" else self.key_dim
            )
            for name, projected in zip(
                names, project_together(inputs, kernels, biases), strict=True
            )
        ]

    def _extend(self, cache, new_keys, new_values):
        """Put keys and values behind those of the cache."""
        if "index" not in cache:
            return extend(cache, new_keys, new_values)
        start = cache["index"]
        new_length, max_length = ops.shape(new_keys)[2], ops.shape(cache["key"])[2]
        # place[p, i] = 1 where new position i goes to p; unwritten positions hold zeros, so that
        # adding writes. One product and one sum on every backend, and no scatter.
        targets = start + ops.arange(new_length, dtype="int32")
        place = ops.equal(
            ops.expand_dims(ops.arange(max_length, dtype="int32"), 1), ops.expand_dims(targets, 0)
        )
        place = ops.cast(place, new_keys.dtype)
        keys = cache["key"] + ops.matmul(place, new_keys)
        values = cache["value"] + ops.matmul(place, new_values)
        cache = {"key": keys, "value": values, "index": start + new_length}
        return cache, keys, values, start

    def _written(self, cache):
        """Return the mask `[1, 1, max_length]` of the written positions of a fixed-size cache."""
        if "index" not in cache:
            return None
        positions = ops.arange(ops.shape(cache["key"])[2], dtype="int32")
        return reshape(positions < cache["index"], (1, 1, -1))

    def _attend_to_cache(self, query, attention_mask, cache, training):
        """Attend to the cache alone, whose rows may each serve several rows of the query.

        Beams of one sentence share its keys and values: they are folded into the query axis.
        A mask then has to be the same for all queries, `[batch or 1, 1, key_length]`.
        """
        query_shape = ops.shape(query)
        cache_batch = ops.shape(cache["key"])[0]
        folded = reshape(query, (cache_batch, -1, query.shape[-1]))
        [queries] = self._project(folded, ("query",))
        outputs = self.attention(
            queries,
            cache["key"],
            cache["value"],
            attention_mask=attention_mask,
            training=training,
        )
        return reshape(self._merge_heads(outputs), query_shape)

    def _split_heads(self, inputs, leading, dim):
        """`[batch, length, heads * dim]` to `[batch, heads, length, dim]`."""
        batch, length = leading
        if inputs.shape[1] == 1:  # Nothing to move, as in every step of decoding.
            return reshape(inputs, (batch, self.num_heads, 1, dim))
        heads = reshape(inputs, (batch, length, self.num_heads, dim))
        return ops.transpose(heads, (0, 2, 1, 3))

    def _merge_heads(self, inputs):
        """`[batch, heads, length, value_dim]` to `[batch, length, d_model]`."""
        batch, _, length, _ = ops.shape(inputs)
        merged = inputs if inputs.shape[2] == 1 else ops.transpose(inputs, (0, 2, 1, 3))
        merged = reshape(merged, (batch, length, self.num_heads * self.value_dim))
        return project(merged, self.output_kernel, self.output_bias, (batch, length))

    def compute_output_spec(self, *args, **kwargs):
        # Traced, since the form of the output depends on the arguments.
        return keras.Operation.compute_output_spec(self, *args, **kwargs)

    def compute_output_shape(self, query_shape, value_shape, key_shape=None):
        return query_shape

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "key_dim": self.key_dim,
            "value_dim": self.value_dim,
            "use_bias": self.use_bias,
            "dropout": self.dropout,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
            "kernel_regularizer": keras.regularizers.serialize(self.kernel_regularizer),
            "seed": self.seed,
        }
