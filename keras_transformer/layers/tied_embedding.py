"""Token embedding whose matrix is also the pre-softmax linear map, section 3.4."""

from collections.abc import Callable, Mapping
from typing import Any

import keras
from keras import ops

from keras_transformer.checks import check_argument
from keras_transformer.layers.composite_layer import (
    CompositeLayer,
    check_arguments,
    load_version_1,
    quantize_parts,
)
from keras_transformer.layers.effective_weights import effective_matrix
from keras_transformer.layers.int8_products import ReversibleEmbedding
from keras_transformer.layers.tensors import Tensor, at_least_float32, check_shape, reshape


@keras.saving.register_keras_serializable(package="keras_transformer")
class TiedEmbedding(CompositeLayer):
    """Looks tokens up and, with the same matrix, projects states to logits.

    The lookup multiplies by `sqrt(d_model)`; the projection does not. The matrix is that of a
    `keras.layers.ReversibleEmbedding`, the attribute `embedding`.

    Args:
        vocab_size: Number of tokens.
        d_model: Width of the embedding.
        padding_id: Id whose embedding is zero, or None for no such id.
        mask_zero: Whether the lookup attaches a Keras mask that is False at `padding_id`.
        embeddings_initializer: Initializer; None for `RandomNormal(stddev=d_model**-0.5)`.
        embeddings_regularizer: Regularizer of the matrix.
        use_bias: Whether the logits have a bias, one number for each token.

    Call arguments:
        inputs: `[batch, length]` ids of any number type, as in `keras.layers.Embedding`; with
            `reverse=True` floating `[..., d_model]`.
        reverse: Whether to project to logits instead of looking up.
        embeddings: With `reverse=True`, `[columns, d_model]` from `output_embeddings`, for the
            logits of some tokens only; None for all tokens.

    Returns:
        `[batch, length, d_model]`, or with `reverse=True` the logits `[..., vocab_size]` (or
        `[..., columns]`) in at least float32.

    Example:

    >>> layer = keras_transformer.layers.TiedEmbedding(vocab_size=1000, d_model=64)
    >>> states = layer(keras.ops.array([[5, 7, 0]]))
    >>> ops.shape(layer(states, reverse=True))
    (1, 3, 1000)

    Reference: Vaswani et al. (2017), section 3.4; Press and Wolf (2016).
    """

    def __init__(
        self,
        vocab_size: int,
        d_model: int,
        padding_id: int | None = 0,
        mask_zero: bool = False,
        embeddings_initializer: str | Callable | None = None,
        embeddings_regularizer: str | Callable | None = None,
        use_bias: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.vocab_size = vocab_size
        self.d_model = d_model
        self.padding_id = padding_id
        self.mask_zero = mask_zero
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.embeddings_regularizer = keras.regularizers.get(embeddings_regularizer)
        self.use_bias = use_bias
        check_arguments(self, TiedEmbedding)
        is_id = type(padding_id) is int and 0 <= padding_id < vocab_size
        rule = f"None or an id below `vocab_size`, which is {vocab_size}"
        check_argument(is_id or padding_id is None, "padding_id", rule, padding_id)
        self.embedding = ReversibleEmbedding(
            vocab_size,
            d_model,
            embeddings_initializer=self.embeddings_initializer
            or keras.initializers.RandomNormal(stddev=d_model**-0.5),
            embeddings_regularizer=self.embeddings_regularizer,
            trainable=self.trainable,
            # In mixed precision Keras would compute logits in float32, which takes much longer.
            reverse_dtype=self.compute_dtype,
            dtype=self.dtype_policy,
            name="embedding",
        )

    def build(self, inputs_shape: tuple | None = None) -> None:
        self.embedding.build(inputs_shape)
        self.bias = None
        if self.use_bias:
            self.bias = self.add_weight((self.vocab_size,), initializer="zeros", name="bias")
        quantize_parts(self, self.quantized_parts)

    @property
    def embeddings(self) -> Any:
        """The effective matrix, `[vocab_size, d_model]`: the variable, dequantized, with LoRA."""
        return effective_matrix(self.embedding)

    def __call__(self, inputs: Tensor, reverse: bool = False, **kwargs: Any) -> Tensor:
        dtype, shape = getattr(inputs, "dtype", None), getattr(inputs, "shape", (None,))
        if reverse and isinstance(shape[-1], int) and shape[-1] != self.d_model:
            rule = f"With reverse=True, `inputs` must have the shape [..., {self.d_model}]"
            raise ValueError(f"{rule}. Received: inputs of shape {tuple(shape)}")
        if not reverse and dtype is not None:
            if keras.backend.is_float_dtype(dtype):  # Ids, or states by mistake.
                check_shape("inputs", inputs, "[batch, length]")
            # Before Keras casts floating ids to the compute dtype: in bfloat16, 257 becomes 256.
            # Small integer types may not hold `padding_id`.
            if keras.backend.standardize_dtype(dtype) not in ("int32", "int64"):
                inputs = ops.cast(inputs, "int32")
        return super().__call__(inputs, reverse=reverse, **kwargs)

    def call(
        self, inputs: Tensor, reverse: bool = False, embeddings: Tensor | None = None
    ) -> Tensor:
        if not reverse:
            vectors, scale = self.embedding(inputs), self.d_model**0.5
            if self.padding_id is None:
                return ops.multiply(vectors, scale)
            is_token = ops.cast(ops.not_equal(inputs, self.padding_id), vectors.dtype)
            return ops.multiply(vectors, ops.expand_dims(is_token * scale, -1))
        # As a product of two matrices, which on TensorFlow is several times faster.
        logits = self.project(reshape(inputs, (-1, self.d_model)), embeddings)
        logits = reshape(logits, (*ops.shape(inputs)[:-1], ops.shape(logits)[-1]))
        return ops.cast(logits, at_least_float32(self.compute_dtype))

    def project(self, states: Tensor, embeddings: Tensor | None = None) -> Tensor:
        """Returns the logits `[positions, columns]`, in the compute dtype.

        Args:
            states, embeddings: `[positions, d_model]`, and the `embeddings` of a call.
        """
        if embeddings is not None:
            matrix, bias = self.output_weights(embeddings)
            logits = ops.matmul(states, ops.transpose(matrix))
        else:
            bias = self.bias
            if self.embedding.quantization_mode is None:
                logits = self.embedding(states, reverse=True)
            else:
                logits = self._quantized_logits(states)
        return logits if bias is None else logits + ops.cast(bias, logits.dtype)

    def _quantized_logits(self, states):
        """Returns the logits of a quantized matrix, with the gradient and LoRA that Keras omits."""
        part = self.embedding

        # The factors of LoRA are differentiated, which JAX does not allow inside of the function.
        matrices = [ops.stop_gradient(effective_matrix(part))] if part.lora_enabled else []

        @ops.custom_gradient
        def logits_with_gradient(states, *matrices):
            def gradient(*args, upstream=None):
                upstream = args[0] if upstream is None else upstream
                [matrix] = matrices or [effective_matrix(part)]
                of_states = ops.matmul(upstream, ops.cast(matrix, upstream.dtype))
                return (of_states, *map(ops.zeros_like, matrices)) if matrices else of_states

            return part(states, reverse=True), gradient

        logits = logits_with_gradient(states, *matrices)
        if part.lora_enabled:
            # The gradient of the states is complete: LoRA is in the effective matrix.
            factors = part.lora_embeddings_b, part.lora_embeddings_a
            change = ops.stop_gradient(states) * (part.lora_alpha / part.lora_rank)
            for factor in factors:
                change = ops.matmul(change, ops.transpose(ops.cast(factor, states.dtype)))
            logits += ops.cast(change, logits.dtype)
        return logits

    def output_weights(self, embeddings: Tensor | None = None) -> tuple[Any, Any]:
        """Returns the matrix `[columns, d_model]` of the logits, and their bias or None.

        Args:
            embeddings: As in a call.
        """
        if embeddings is None:
            return self.embeddings, self.bias
        if self.bias is None:
            return embeddings, None
        return embeddings[:, : self.d_model], embeddings[:, self.d_model]

    def output_embeddings(self, ids: Tensor) -> Tensor:
        """Returns the unscaled embeddings of tokens, `[columns, d_model]`, in the compute dtype.

        A bias of the logits is one more number at the end of each.

        Args:
            ids: Tokens, int32 `[columns]`.
        """
        embeddings = ops.cast(self.embedding(ids), self.compute_dtype)
        if self.bias is None:
            return embeddings
        bias = ops.cast(ops.take(self.bias, ids), self.compute_dtype)
        return ops.concatenate([embeddings, ops.expand_dims(bias, 1)], axis=1)

    def compute_mask(self, inputs: Tensor, previous_mask: Tensor | None = None) -> Tensor | None:
        is_lookup = keras.backend.is_int_dtype(inputs.dtype)
        if self.mask_zero and is_lookup and self.padding_id is not None:
            return ops.not_equal(inputs, self.padding_id)
        return previous_mask

    def compute_output_spec(
        self, inputs: Tensor, reverse: bool = False, embeddings: Tensor | None = None
    ) -> Tensor:
        if not reverse:
            return keras.KerasTensor((*inputs.shape, self.d_model), dtype=self.compute_dtype)
        num_columns = self.vocab_size if embeddings is None else embeddings.shape[0]
        shape = (*inputs.shape[:-1], num_columns)
        return keras.KerasTensor(shape, dtype=at_least_float32(self.compute_dtype))

    def compute_output_shape(self, inputs_shape: tuple) -> tuple:  # type: ignore[override]
        return (*inputs_shape, self.d_model)

    def load_own_variables(self, store: Mapping) -> None:
        if not load_version_1(store, [self.embedding], self.embedding.weights):
            super().load_own_variables(store)

    def get_config(self) -> dict:
        return {
            **super().get_config(),
            "vocab_size": self.vocab_size,
            "d_model": self.d_model,
            "padding_id": self.padding_id,
            "mask_zero": self.mask_zero,
            "embeddings_initializer": keras.initializers.serialize(self.embeddings_initializer),
            "embeddings_regularizer": keras.regularizers.serialize(self.embeddings_regularizer),
            "use_bias": self.use_bias,
        }
