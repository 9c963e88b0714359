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
from keras_transformer.models import Ensemble, Transformer
from keras_transformer.models.transformer import DecodingState

_PARTS = ("key", "value")


def with_dtype(
    model: Transformer | Ensemble, dtype: str, **settings: Any
) -> Transformer | Ensemble:
    """Returns `model`, or a copy with weights and computation in `dtype` if it has another.

    `settings` are fields of its `TransformerConfig` that the copy has instead.
    """
    if isinstance(model, Ensemble):
        return Ensemble([with_dtype(member, dtype, **settings) for member in model.models])
    config = dataclasses.replace(model.config, **settings)
    if model.dtype_policy.name == dtype and config == model.config:
        return model
    copy = Transformer(config, dtype=dtype)
    copy.set_weights(model.get_weights())
    return copy


def convertible(model: Transformer) -> Transformer:
    """Returns the model, or a copy, in float32 and without loops, which converters do not know."""
    if model.config.sliding_window is not None:
        rule = "ONNX and LiteRT exports have no sliding window; a SavedModel has it"
        raise UserError(f"{rule}. Received: sliding_window={model.config.sliding_window}")
    return with_dtype(model, "float32", flash_attention=None)


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
