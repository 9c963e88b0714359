"""The encoder and one decoder step as functions of named tensors, for other runtimes.

`export_onnx` describes the tensors.
"""

import dataclasses
from typing import Any

from keras import ops

from keras_transformer.errors import UserError
from keras_transformer.layers.caches import (
    CompleteCache,
    DecoderBlockCache,
    DecoderCache,
    GrowingCache,
)
from keras_transformer.layers.composite_layer import quantize_parts, quantized_parts
from keras_transformer.models import Ensemble, Transformer
from keras_transformer.models.transformer import DecodingState
from keras_transformer.settings.transformer_config import TransformerConfig

_PARTS = ("key", "value")


def copy_of(model: Transformer | Ensemble, dtype: str | None = None) -> Transformer | Ensemble:
    """Returns a copy of a model, with weights and computation in `dtype`; None for the model's."""
    if isinstance(model, Ensemble):
        return Ensemble([_copy(member, member.config, dtype) for member in model.models])
    return _copy(model, model.config, dtype)


def convertible(model: Any) -> Transformer:
    """Returns the model in float32 without loops, which the converters do not know.

    It is the model itself or a copy.

    Raises:
        UserError: If the model has a sliding window.
    """
    if model.config.sliding_window is not None:
        rule = "ONNX and LiteRT exports have no sliding window; a SavedModel has it"
        raise UserError(f"{rule}. Received: sliding_window={model.config.sliding_window}")
    config = dataclasses.replace(model.config, flash_attention=None)
    if (model.config, model.dtype_policy.name) == (config, "float32"):
        return model
    return _copy(model, config, "float32")


def _copy(model: Transformer, config: TransformerConfig, dtype: str | None) -> Transformer:
    copy = Transformer(config, dtype=model.dtype_policy if dtype is None else dtype)
    quantize_parts(copy, quantized_parts(model))
    copy.set_weights(model.get_weights())
    return copy


def concrete_functions(model: Transformer) -> dict[str, Any]:
    """Returns concrete functions `encode` and `decode` of a model, for any batch and lengths."""
    import tensorflow as tf

    def encode(source):
        outputs, source_mask = model.encode(source, training=False)
        named = {"source_mask": source_mask}
        for number, block in enumerate(model.decoder.blocks):
            cache = block.cross_attention.make_cache(outputs)
            named |= {f"cross_{part}_{number}": cache[i] for i, part in enumerate(_PARTS)}
        return named

    def decode(tokens, source_mask, **tensors):
        blocks = []
        for number in range(len(model.decoder.blocks)):
            own = GrowingCache(*((tensors[f"self_{part}_{number}"],) for part in _PARTS))
            cross = CompleteCache(*(tensors[f"cross_{part}_{number}"] for part in _PARTS))
            blocks.append(DecoderBlockCache(own, cross))
        cache = DecoderCache(ops.shape(tensors["self_key_0"])[2], tuple(blocks))
        logits, state = model.decode_step(tokens, None, DecodingState(cache, source_mask))
        named = {"logits": logits}
        for number, block in enumerate(state.cache.blocks):
            for part, [whole] in zip(_PARTS, block.self_attention, strict=True):
                named[f"new_self_{part}_{number}"] = whole
        return named

    inputs = {
        "tokens": tf.TensorSpec([None], tf.int32),
        "source_mask": tf.TensorSpec([None, None], tf.bool),
    }
    for number, block in enumerate(model.decoder.blocks):
        for kind, attention in (("self", block.self_attention), ("cross", block.cross_attention)):
            for part, dim in zip(_PARTS, (attention.key_dim, attention.value_dim), strict=True):
                shape = [None, attention.num_heads, None, dim]
                inputs[f"{kind}_{part}_{number}"] = tf.TensorSpec(shape, tf.float32)
    return {
        "encode": tf.function(encode, autograph=False).get_concrete_function(
            source=tf.TensorSpec([None, None], tf.int32)
        ),
        "decode": tf.function(decode, autograph=False).get_concrete_function(**inputs),
    }
