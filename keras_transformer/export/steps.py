"""The encoder and one step of the decoder as functions of named tensors, for runtimes without us.

The names, for every decoder block i:

- `cross_key_i`, `cross_value_i`: keys and values of the source, `[batch, heads, source, dim]`;
- `self_key_i`, `self_value_i`: those of the tokens decoded so far, `[rows, heads, target, dim]`;
- `new_self_key_i`, `new_self_value_i`: the same after a step.
"""

import dataclasses
import logging

import keras
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

_LOGGER = logging.getLogger(__name__)

_PARTS = ("key", "value")


def check_tensorflow(title) -> None:
    """Raises a `UserError` unless Keras runs on TensorFlow, which traces the functions here."""
    if keras.backend.backend() != "tensorflow":
        raise UserError(
            f"The {title} is written with the TensorFlow backend (KERAS_BACKEND=tensorflow). "
            f"Received: backend={keras.backend.backend()!r}"
        )


def with_dtype(model, dtype):
    """Returns `model`, or a copy of it with the weights and the arithmetic of `dtype`."""
    if isinstance(model, Ensemble):
        return Ensemble([with_dtype(member, dtype) for member in model.models])
    if model.dtype_policy.name == dtype:
        return model
    copy = Transformer(model.config, dtype=dtype)
    copy.set_weights(model.get_weights())
    return copy


def exportable_model(translator, title):
    """Returns a translator's model, for a runtime that searches by itself.

    The constraints that its search will lack are named in a logged warning.

    Args:
        translator: a `Translator`.
        title: what the export is called.

    Raises:
        UserError: if the model is an `Ensemble`, which only our own search can ask, or the
            translator a `Parser`.
    """
    check_searches_outside(title, translator.task)
    model = translator.model
    if isinstance(model, Ensemble):
        raise UserError(
            f"The {title} holds one model; export the models of an ensemble one by one. "
            f"Received: an Ensemble of {len(model.models)}"
        )
    warn_of_constraints(translator.search, title)
    return model


def check_searches_outside(title: str, task: str) -> None:
    """Raises a `UserError` for a task other than translation, whose search is part of its answers.

    Args:
        title: the export's name for people.
        task: name of the task.
    """
    if task != "translation":
        raise UserError(
            f"The {title} is for translators, because the program that runs it does the search. "
            f"Export the model as saved_model. Received: a model for {task}"
        )


def warn_of_constraints(search, title) -> None:
    """Logs the constraints of a search, if it has any: the program that runs the export searches.

    Args:
        search: the translator's search.
        title: what the export is called.
    """
    names = [
        repr(constraint) if dataclasses.is_dataclass(constraint) else type(constraint).__name__
        for constraint in getattr(search, "constraints", ())
    ]
    if names:
        message = "The %s does not apply the constraints of the search: %s."
        _LOGGER.warning(message, title, ", ".join(names))


def concrete_functions(model):
    """Returns `encode` and `decode` of a model as TensorFlow functions of any batch and length.

    Args:
        model: a `Transformer`.

    Returns:
        Dict of two concrete functions, each from named tensors to a dict of named tensors:

        - `"encode"`: `source`, int32 `[batch, source_length]`, each row with EOS, padded with 0,
          to `source_mask`, bool of the same shape, and the `cross` tensors;
        - `"decode"`: `tokens`, int32 `[rows]`, the last token of each row, the rows of a sentence
          (its beams) one after the other; all that `encode` gave; and the `self` tensors, of
          length 0 at first; to `logits` `[rows, vocabulary]` and the `new_self` tensors.
    """
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
