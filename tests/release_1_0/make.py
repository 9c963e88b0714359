"""Models and trainings as version 1.0 wrote them to `files.tar.xz`, and what they answer.

Commit 50137e2a has the program that wrote the file.
"""

import pathlib

import keras
import numpy as np
from keras import ops

from keras_transformer.data import PairsCorpus
from keras_transformer.layers import (
    AdditiveAttention,
    Decoder,
    DecoderBlock,
    Encoder,
    EncoderBlock,
    FeedForward,
    MultiHeadAttention,
    RelativePosition,
    TiedEmbedding,
)
from keras_transformer.models import Transformer, TransformerConfig
from keras_transformer.training import TrainingSettings, train
from tests.release_0_1.make import SMALL, TEXTS, WORDS

ARCHIVE = pathlib.Path(__file__).parent / "files.tar.xz"
CONFIG = {
    **SMALL,
    "use_bias": True,
    "norm": "pre",
    "position": "rotary",
    "activation": "gelu",
    "dropout": 0.0,
}
INPUTS = {
    "source": np.array([[5, 9, 7, 3], [6, 3, 0, 0]], "int32"),
    "target": np.array([[2, 8, 4], [2, 5, 0]], "int32"),
}
LABELS = np.array([[8, 4, 3], [5, 3, 0]], "int32")
PAIRS = [
    (" ".join(words), " ".join(words[::-1]))
    for n in range(40)
    for words in [[WORDS[(7 * n + k * k) % 20] for k in range(n % 6 + 1)]]
]


def randomize(model):
    """Gives every weight, also biases and scales, random values that occur nowhere else."""
    generator = np.random.default_rng(3)
    for weight in model.weights:
        scale = (sum(weight.shape) / 2) ** -0.5
        weight.assign(weight + generator.normal(0.0, scale, weight.shape))
    return model


def make_transformer():
    """Returns a model with two vocabularies and learned positions."""
    sizes = {"vocab_size": 12, "target_vocab_size": 10, "max_length": 6}
    config = TransformerConfig(**sizes, **{**CONFIG, "position": "learned"})
    return randomize(Transformer(config))


def make_composed_model():
    """Returns a model that a user composed of layers."""
    source, target = (keras.Input((None,), dtype="int32", name=name) for name in INPUTS)
    mask = ops.not_equal(source, 0)
    embedding = TiedEmbedding(12, 8)
    encoder = Encoder(
        [
            EncoderBlock(2, 16, dropout=0.0, use_bias=True, position=RelativePosition(3)),
            EncoderBlock(2, 16, dropout=0.0, key_dim=3, value_dim=5, norm="pre", activation="gelu"),
        ],
        dropout=0.0,
        position="sinusoidal",
    )
    states = encoder(embedding(source), padding_mask=mask)
    states = EncoderBlock(4, 16, dropout=0.0)(states, padding_mask=mask)
    outputs = embedding(target)
    for block in (
        DecoderBlock(2, 16, dropout=0.0, use_bias=True),
        DecoderBlock(4, 16, dropout=0.0, norm="pre"),
    ):
        outputs = block(outputs, states, encoder_padding_mask=mask)
    blocks = [DecoderBlock(2, 16, dropout=0.0, position=RelativePosition(2))]
    outputs = Decoder(blocks, position="sinusoidal", dropout=0.0)(
        outputs, states, encoder_padding_mask=mask
    )
    outputs += MultiHeadAttention(2, 4, use_bias=True, position=RelativePosition(2))(
        outputs, outputs, outputs, use_causal_mask=True
    )
    outputs += MultiHeadAttention(2, 3, 5, attention=AdditiveAttention())(
        outputs, states, states, key_mask=mask
    )
    outputs += FeedForward(16)(outputs)
    outputs += FeedForward(16, activation="tanh", use_bias=False)(outputs)
    outputs = embedding(outputs, reverse=True)
    return randomize(keras.Model([source, target], outputs))


def train_a_step(model):
    """Returns the model after a step of Adam."""
    is_token = (LABELS > 0).astype("float32")
    inputs = INPUTS if isinstance(model, Transformer) else list(INPUTS.values())
    model.train_on_batch(inputs, LABELS, is_token / is_token.sum())
    return model


def model_answer(model):
    """Returns the logits of a model."""
    inputs = INPUTS if isinstance(model, Transformer) else list(INPUTS.values())
    return ops.convert_to_numpy(model(inputs, training=False))


def served_translations(path):
    """Returns the translations of `TEXTS` by a SavedModel."""
    import tensorflow as tf
    import tensorflow_text  # noqa: F401

    signature = tf.saved_model.load(str(path)).signatures["serving_default"]
    return [text.decode() for text in signature(tf.constant(TEXTS))["translation"].numpy()]


TRAININGS = {
    "plain": {"model": SMALL},
    # The weights are chosen by validation loss.
    "variant": {
        "model": {
            **{**SMALL, "use_bias": True, "norm": "pre", "position": "relative"},
            **dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), 0.2),
        },
        "recipe": {"ema_momentum": 0.8, "r_drop": 1.0, "clip_norm": 1.0},
        "shared_vocabulary": False,
        "micro_batches": 2,
        "bleu_every": 0,
    },
}


def train_translator(directory, kind, report=lambda line: None):
    """Trains to step 8."""
    changes = dict(TRAININGS[kind])
    recipe = {"tokens_per_batch": 64, "warmup_steps": 4, "average_checkpoints": 3}
    recipe["peak_learning_rate"] = 0.004  # that of the preset in 1.0
    recipe["optimizer"] = "adam"
    settings = TrainingSettings.from_dict(
        {
            "preset": "tiny",
            "recipe": {**recipe, **changes.pop("recipe", {})},
            "tokenizer": "subword",
            "vocab_size": None,
            "max_steps": 8,
            "evaluate_every": 3,
            "checkpoint_every": 2,
            "deterministic": True,
            **changes,
        }
    )

    corpus = PairsCorpus(PAIRS)
    return train(directory, corpus, corpus, settings, report=report)
