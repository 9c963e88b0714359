"""Token embedding whose matrix is also the pre-softmax linear map, section 3.4."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_transformer.layers.configured_layer import ConfiguredLayer
from keras_transformer.layers.dtypes import Tensor, at_least_float32
from keras_transformer.layers.kernels.shapes import is_decoding_step, reshape
from keras_transformer.layers.kernels.stored_kernels import multiply_few_rows


@keras.saving.register_keras_serializable(package="keras_transformer")
class TiedEmbedding(ConfiguredLayer):
    """Looks tokens up and, with the same matrix, projects states to logits.

    The lookup multiplies by `sqrt(d_model)`; the projection does not. The embedding of the padding
    id is exactly zero.

    Args:
        vocab_size: Number of tokens.
        d_model: Width of the embedding.
        padding_id: Id whose embedding is zero, or None for no such id.
        mask_zero: Whether the lookup attaches a Keras mask that is False at `padding_id`.
        embeddings_initializer: Initialiser; None for `RandomNormal(stddev=d_model**-0.5)`.
        embeddings_regularizer: Regulariser of the matrix.

    Call arguments:
        inputs: `[batch, length]` ids of any number type, as in `keras.layers.Embedding`; with
            `reverse=True` floating `[..., d_model]`.
        reverse: Whether to project to logits instead of looking up.
        embeddings: With `reverse=True`, `[columns, d_model]` from `rows`, for the logits of some
            tokens only; None for all tokens.

    Returns:
        `[batch, length, d_model]`, or with `reverse=True` the logits `[..., vocab_size]` in at
        least float32 (with `embeddings`, `[..., columns]`).

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
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._keep(
            vocab_size=vocab_size,
            d_model=d_model,
            padding_id=padding_id,
            mask_zero=mask_zero,
            embeddings_initializer=embeddings_initializer,
            embeddings_regularizer=embeddings_regularizer,
        )
        is_id = type(padding_id) is int and 0 <= padding_id < vocab_size
        if padding_id is not None and not is_id:
            rule = f"`padding_id` must be None or an id below `vocab_size`, which is {vocab_size}"
            raise ValueError(f"{rule}. Received: padding_id={padding_id!r}")

    def build(self, inputs_shape: tuple | None = None) -> None:
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(self.vocab_size, self.d_model),
            initializer=self.embeddings_initializer
            or keras.initializers.RandomNormal(stddev=self.d_model**-0.5),
            regularizer=self.embeddings_regularizer,
        )

    def __call__(self, inputs: Tensor, reverse: bool = False, **kwargs: Any) -> Tensor:
        dtype = getattr(inputs, "dtype", None)
        if not reverse and dtype is not None:
            # Before Keras casts floating ids to the compute dtype: in bfloat16, 257 becomes 256.
            # Small integer types may not hold `padding_id`.
            if keras.backend.standardize_dtype(dtype) not in ("int32", "int64"):
                inputs = ops.cast(inputs, "int32")
        return super().__call__(inputs, reverse=reverse, **kwargs)

    def call(
        self, inputs: Tensor, reverse: bool = False, embeddings: Tensor | None = None
    ) -> Tensor:
        if not reverse:
            return self._look_up(inputs)
        return self._project(inputs, self.embeddings if embeddings is None else embeddings)

    def rows(self, ids: Tensor) -> Tensor:
        """Returns the rows of the matrix, `[columns, d_model]`, in the compute dtype.

        Args:
            ids: int32 `[columns]`, tokens.
        """
        return ops.cast(ops.take(self.embeddings, ids, axis=0), self.compute_dtype)

    def _look_up(self, ids):
        vectors = ops.take(self.embeddings, ids, axis=0)
        scale = self.d_model**0.5
        if self.padding_id is None:
            return ops.multiply(vectors, scale)
        is_token = ops.cast(ops.not_equal(ids, self.padding_id), vectors.dtype)
        return ops.multiply(vectors, ops.expand_dims(is_token * scale, -1))

    def _project(self, states, embeddings):
        # One product of two matrices, with the transposition left to the product.
        leading = ops.shape(states)[:-1]
        rows = ops.reshape(states, (-1, self.d_model))
        if is_decoding_step(states):
            logits = multiply_few_rows(rows, embeddings)
        else:
            logits = ops.matmul(rows, ops.transpose(embeddings))
        logits = reshape(logits, (*leading, ops.shape(embeddings)[0]))
        return ops.cast(logits, at_least_float32(self.compute_dtype))

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

    def compute_output_shape(self, inputs_shape: tuple) -> tuple:
        return (*inputs_shape, self.d_model)
