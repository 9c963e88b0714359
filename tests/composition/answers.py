"""A tiny model, and what a model answers as a NumPy array, on every backend."""

from keras import ops

from keras_transformer.models import Transformer, TransformerConfig


def tiny_transformer(**settings):
    sizes = {"num_encoder_layers": 1, "num_decoder_layers": 1, "d_model": 8, "intermediate_dim": 16}
    return Transformer(TransformerConfig(**{"vocab_size": 20, "num_heads": 2, **sizes, **settings}))


def answer(model, inputs):
    return ops.convert_to_numpy(model(inputs))
