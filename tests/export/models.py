"""Small random translators that exports are tested with."""

import numpy as np
import pytest

from keras_transformer.decoding import GreedySearch
from keras_transformer.inference.translator import Translator
from tests.tiny_translator import sentence, tiny_model, tiny_tokenizer

# What a runtime could get wrong: where the norms stand, biases, positions, activation, epsilon.
CONFIGS = [
    {"output_bias": True, "embedding_norm": True},
    {"norm": "pre", "use_bias": True, "num_encoder_layers": 2},
    {"position": "learned", "max_length": 64, "activation": "gelu"},
    {"num_decoder_layers": 2, "activation": "silu", "norm_epsilon": 1e-2},
]
# In the default run of the tests the first alone.
SLOW_CONFIGS = [pytest.param(config, marks=pytest.mark.slow) for config in CONFIGS[1:]]
TEXTS = [sentence(1 + seed % 9, seed) for seed in range(20)]
BOS_ID, EOS_ID = 2, 3


def random_translator(**config):
    """A greedy translator of `tiny_model`, with biases and norms that are not 0 and 1 either."""
    model = tiny_model(**config)
    generator = np.random.default_rng(7)
    for weight in model.trainable_weights:
        if len(weight.shape) == 1:
            weight.assign(weight + generator.normal(0.0, 0.1, weight.shape))
    return Translator(model, tiny_tokenizer(), search=GreedySearch(), extra_length=12)
