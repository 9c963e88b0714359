"""Copies of models, and their encoder and one decoder step as functions for other runtimes."""

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


def copy_of(model: Transformer | Ensemble, dtype: str | None = None, **changes: Any) -> Any:
    """Returns a copy of a model, with weights and computation in `dtype`; None for the model's.

    `changes` are fields of the copy's `TransformerConfig`.
    """
    if isinstance(model, Ensemble):
        return Ensemble([copy_of(member, dtype, **changes) for member in model.models])
    config = dataclasses.replace(model.config, **changes)
    copy = Transformer(config, dtype=model.dtype_policy if dtype is None else dtype)
    quantize_parts(copy, quantized_parts(model))
    copy.set_weights(model.get_weights())
    return copy


def convertible(model: Any) -> Transformer:
    """Returns the model, or a copy, in float32 without loops, which the converters do not know."""
    if model.config.sliding_window is not None:
        rule = "ONNX and LiteRT exports have no sliding window; a SavedModel has it"
        raise UserError(f"{rule}. Received: sliding_window={model.config.sliding_window}")
    if model.config.flash_attention is None and model.dtype_policy.name == "float32":
        return model
    return copy_of(model, "float32", flash_attention=None)


def concrete_functions(model: Transformer) -> dict[str, Any]:
    """Returns concrete functions `encode` and `decode` of a model, for any batch and lengths.

    docs/runtimes.md describes their named tensors.
    """
    import tensorflow as tf

    def encode(source):
        outputs, source_mask = model.encode(source, training=False)
        named = {"source_mask": source_mask}
        for number, block in enumerate(model.decoder.blocks):
            keys, values = block.cross_attention.make_cache(outputs)
            named |= {f"cross_key_{number}": keys, f"cross_value_{number}": values}
        return named

    def decode(tokens, source_mask, **tensors):
        blocks = []
        for number in range(len(model.decoder.blocks)):
            keys, values = tensors[f"self_key_{number}"], tensors[f"self_value_{number}"]
            past = GrowingCache((keys,), (values,))
            cross = CompleteCache(tensors[f"cross_key_{number}"], tensors[f"cross_value_{number}"])
            blocks.append(DecoderBlockCache(past, cross))
        cache = DecoderCache(ops.shape(tensors["self_key_0"])[2], tuple(blocks))
        logits, state = model.decode_step(tokens, None, DecodingState(cache, source_mask))
        named = {"logits": logits}
        for number, block in enumerate(state.cache.blocks):
            [keys], [values] = block.self_attention
            named |= {f"new_self_key_{number}": keys, f"new_self_value_{number}": values}
        return named

    inputs = {
        "tokens": tf.TensorSpec([None], tf.int32),
        "source_mask": tf.TensorSpec([None, None], tf.bool),
    }
    for number, block in enumerate(model.decoder.blocks):
        for kind, attention in (("self", block.self_attention), ("cross", block.cross_attention)):
            for name, dim in (("key", attention.key_dim), ("value", attention.value_dim)):
                shape = [None, attention.num_heads, None, dim]
                inputs[f"{kind}_{name}_{number}"] = tf.TensorSpec(shape, tf.float32)

    def traced(function, **inputs):
        return tf.function(function, autograph=False).get_concrete_function(**inputs)

    source = tf.TensorSpec([None, None], tf.int32)
    return {"encode": traced(encode, source=source), "decode": traced(decode, **inputs)}
