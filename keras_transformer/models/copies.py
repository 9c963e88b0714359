"""Copies of models in another dtype, with other settings, or of a subclass."""

import dataclasses
from typing import Any

from keras_transformer.layers.composite_layer import quantize_parts, quantized_parts
from keras_transformer.layers.effective_weights import copy_weights
from keras_transformer.models.ensemble import Ensemble
from keras_transformer.models.transformer import Transformer


def copy_of(
    model: Transformer | Ensemble,
    dtype: str | None = None,
    model_class: type[Transformer] = Transformer,
    **changes: Any,
) -> Any:
    """Returns a copy of a model, with weights and computation in `dtype`; None for the model's.

    The copy is quantized as the model, and LoRA is merged into the matrices that are not. It is of
    `model_class`. `changes` are fields of the copy's `TransformerConfig`.
    """
    if isinstance(model, Ensemble):
        return Ensemble([copy_of(one, dtype, model_class, **changes) for one in model.models])
    config = dataclasses.replace(model.config, **changes)
    copy = model_class(config, dtype=model.dtype_policy if dtype is None else dtype)
    quantize_parts(copy, quantized_parts(model))
    copy_weights(model, copy)
    return copy
