"""A tiny translator with random weights: fast, and its answers differ from sentence to sentence."""

import functools

import numpy as np

from keras_transformer.data import EOS_ID, train_sentencepiece
from keras_transformer.inference.translator import Translator
from keras_transformer.models import Transformer, TransformerConfig

WORDS = (
    "a red blue green old young house door dog cat man woman runs sleeps sees opens in on with "
    "and the under over small large garden street window child ball tree bird river boat"
).split()


def sentence(num_words, seed=0):
    return " ".join(np.random.default_rng(seed).choice(WORDS, num_words))


@functools.cache
def tiny_tokenizer(vocab_size=320):
    lines = [sentence(2 + seed % 8, seed) for seed in range(300)]
    return train_sentencepiece(lines, vocab_size=vocab_size)


def tiny_model(seed=13, **overrides):
    config = {
        "vocab_size": 320,
        "num_encoder_layers": 1,
        "num_decoder_layers": 1,
        "d_model": 32,
        "intermediate_dim": 64,
        "num_heads": 4,
        **overrides,
    }
    model = Transformer(TransformerConfig(**config))
    # Own random numbers: a new default of a layer must not change what the tests look at.
    # Large matrices let the sentence weigh more than the last token; scores lie far apart.
    generator = np.random.default_rng(seed)
    for weight in model.trainable_weights:
        if len(weight.shape) == 2:
            scale = 5.0 * np.sqrt(2.0 / sum(weight.shape))
            weight.assign(generator.normal(0.0, scale, weight.shape))
    vocab_size = model.config.output_vocab_size
    table = generator.normal(0.0, model.config.d_model**-0.5, (vocab_size, model.config.d_model))
    # Words rather than stray bytes (ids 4 to 259), and an end now and then.
    table[:260] *= 0.05
    table[EOS_ID] *= 20.0 * 1.5
    model.target_embedding.embeddings.assign(table)
    return model


def tiny_translator(seed=13, tokenizer=None, **settings):
    settings = {"extra_length": 12, **settings}
    return Translator(tiny_model(seed), tokenizer or tiny_tokenizer(), **settings)
