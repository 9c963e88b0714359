"""Projections of queries, keys and values to several heads, and of the heads to the outputs."""

from keras import ops

from keras_transformer.layers.configured_layer import KernelLayer
from keras_transformer.layers.kernels.projection import project, project_together
from keras_transformer.layers.kernels.shapes import reshape


class HeadProjections(KernelLayer):
    """Base of `MultiHeadAttention`, which has `num_heads`, `key_dim`, `value_dim` and `use_bias`.

    The kernels are matrices `[input_dim, heads * dim]`, head-major.
    """

    def build(self, query_shape: tuple, value_shape: tuple, key_shape: tuple | None = None) -> None:
        d_model = query_shape[-1]
        key_width = self.num_heads * self.key_dim
        value_width = self.num_heads * self.value_dim
        key_input_dim = (key_shape or value_shape)[-1]
        self.query_kernel, self.query_bias = self._add_map("query", d_model, key_width)
        self.key_kernel, self.key_bias = self._add_map("key", key_input_dim, key_width)
        self.value_kernel, self.value_bias = self._add_map("value", value_shape[-1], value_width)
        self.output_kernel, self.output_bias = self._add_map("output", value_width, d_model)

    def _add_map(self, name, input_dim, output_dim):
        kernel = self._add_kernel(f"{name}_kernel", input_dim, output_dim)
        return kernel, self._add_bias(f"{name}_bias", output_dim)

    def _project_value(self, value, key):
        """Returns the keys and values of all heads, `[batch, num_heads, key_length, dim]`."""
        if key is None or key is value:
            return self._project(value, ("key", "value"))
        return (*self._project(key, ("key",)), *self._project(value, ("value",)))

    def _project(self, inputs, names, leading=None):
        """Returns the queries, keys or values of all heads, `[batch, num_heads, length, dim]`.

        `leading` is `(batch, length)` of the results; None for the sizes of the inputs.
        """
        # Keras casts only floats, and only inside `__call__`; caches are made outside of it.
        inputs = ops.cast(inputs, self.compute_dtype)
        # Before the projection: the ONNX export of Keras loses the shape of the product.
        leading = leading or ops.shape(inputs)[:2]
        kernels = tuple(getattr(self, f"{name}_kernel") for name in names)
        biases = tuple(getattr(self, f"{name}_bias") for name in names)
        outputs = project_together(inputs, kernels, biases)
        return [self._split_heads(one, leading) for one in outputs]

    def _split_heads(self, inputs, leading):
        """Returns `[batch, length, heads * dim]` as `[batch, heads, length, dim]`."""
        (batch, length), dim = leading, inputs.shape[-1] // self.num_heads
        # Nothing to move, as in every step of decoding. A tensor must not be compared here.
        if isinstance(length, int) and length == 1:
            return reshape(inputs, (batch, self.num_heads, 1, dim))
        heads = reshape(inputs, (batch, length, self.num_heads, dim))
        return ops.transpose(heads, (0, 2, 1, 3))

    def _merge_heads(self, inputs, leading=None):
        """Merges and projects `[batch, heads, length, value_dim]` to `[batch, length, d_model]`.

        `leading` is `(batch, length)` of the result; None for the sizes of the inputs.
        """
        batch, length = leading or (ops.shape(inputs)[0], ops.shape(inputs)[2])
        inputs = ops.cast(inputs, self.compute_dtype)  # `attention` may have a type of its own.
        merged = inputs if inputs.shape[2] == 1 else ops.transpose(inputs, (0, 2, 1, 3))
        merged = reshape(merged, (batch, length, self.num_heads * self.value_dim))
        return project(merged, self.output_kernel, self.output_bias, (batch, length))
