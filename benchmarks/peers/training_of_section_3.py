"""Trains a small model on random tokens for a short time, on one thread.

Usage: training_of_section_3.py attention NAME SEED
       training_of_section_3.py position NAME SEED

`attention` trains an encoder with one wide head to reverse sequences; NAME is its attention
function. It prints loss and accuracy on new sequences after several numbers of steps. `position`
trains a Transformer to copy sequences of up to 30 tokens; NAME is its kind of positions. It prints
loss and accuracy on new sequences of 30 to 120 tokens, with teacher forcing.
"""

import json
import sys
import time

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from keras_transformer.layers import (
    AdditiveAttention,
    FeedForward,
    LayerNormalization,
    MultiHeadAttention,
    ScaledDotProductAttention,
    SinusoidalPositionEncoding,
    TiedEmbedding,
)
from keras_transformer.models import TrainingRecipe, Transformer, TransformerConfig
from keras_transformer.training import LabelSmoothedCrossEntropy, make_optimizer

PADDING, BOS, EOS, FIRST = 0, 2, 3, 4
VOCABULARY, BATCH = FIRST + 30, 32
ATTENTION = {
    "scaled": ScaledDotProductAttention,
    "unscaled": lambda: ScaledDotProductAttention(scale=1.0),
    "additive": AdditiveAttention,
}
HEAD = 256  # d_k and d_model of the encoder with one head
WIDTH = 64  # d_model of the Transformers
LONGEST, LENGTHS = 30, (30, 45, 60, 90, 120)
POSITION_STEPS, ATTENTION_STEPS = 3000, (100, 200, 400, 800)


def random_tokens(lengths, generator):
    """Returns sequences `[batch, length]` that end with EOS; the lengths include EOS."""
    tokens = np.full((len(lengths), max(lengths)), PADDING, "int32")
    for row, length in zip(tokens, lengths, strict=True):
        row[:length] = [*generator.integers(FIRST, VOCABULARY, length - 1), EOS]
    return tokens


def to_copy(tokens):
    """Returns the inputs of a Transformer that copies tokens; the target begins with BOS."""
    shifted = np.pad(tokens, ((0, 0), (1, 0)), constant_values=BOS)[:, :-1]
    return {"source": tokens, "target": np.where(tokens == PADDING, PADDING, shifted)}


def encoder_with(attention):
    """Returns a model of one head, whose queries and keys initially have a variance near 1."""
    tokens = keras.Input([None], dtype="int32")
    embedding = TiedEmbedding(VOCABULARY, HEAD)
    states = SinusoidalPositionEncoding()(embedding(tokens))
    attended = MultiHeadAttention(1, HEAD, attention=ATTENTION[attention]())(states, states)
    states = LayerNormalization()(states + attended)
    states = LayerNormalization()(states + FeedForward(2 * HEAD)(states))
    return keras.Model(tokens, embedding(states, reverse=True))


def transformer_with(position):
    config = TransformerConfig(
        vocab_size=VOCABULARY,
        num_encoder_layers=1,
        num_decoder_layers=1,
        d_model=WIDTH,
        intermediate_dim=2 * WIDTH,
        num_heads=4,
        dropout=0.0,
        position=position,
        max_length=max(LENGTHS),
    )
    return Transformer(config)


def evaluate(model, inputs, labels):
    """Returns the mean loss and the accuracy of the tokens."""
    logits = ops.convert_to_tensor(model.predict(inputs, batch_size=16, verbose=0))
    losses = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
    return float(ops.mean(losses)), float(np.mean(np.argmax(logits, -1) == labels))


def compiled(model, width, rate):
    recipe = TrainingRecipe(peak_learning_rate=rate, warmup_steps=200)
    model.compile(make_optimizer(recipe, width), LabelSmoothedCrossEntropy(0.0))
    return model


def train_attention(name, generator):
    """Returns loss and accuracy by number of steps."""
    model = compiled(encoder_with(name), HEAD, 1e-3)
    weights = np.full((BATCH, LONGEST), 1 / (BATCH * LONGEST), "float32")

    def batches():
        while True:
            tokens = random_tokens([LONGEST] * BATCH, generator)
            yield tokens, tokens[:, ::-1], weights

    held_out = random_tokens([LONGEST] * 256, np.random.default_rng(0))
    scores, done = {}, 0
    for steps in ATTENTION_STEPS:
        model.fit(batches(), steps_per_epoch=steps - done, shuffle=False, verbose=0)
        scores[steps], done = evaluate(model, held_out, held_out[:, ::-1]), steps
    return scores


def train_position(name, generator):
    """Returns loss and accuracy by length."""
    model = compiled(transformer_with(name), WIDTH, 4e-3)

    def batches():
        while True:
            # One sequence of every batch has the maximum length, so that batches have one shape.
            lengths = [LONGEST, *generator.integers(2, LONGEST + 1, BATCH - 1)]
            tokens = random_tokens(lengths, generator)
            mask = tokens != PADDING
            yield to_copy(tokens), tokens, (mask / np.sum(mask)).astype("float32")

    model.fit(batches(), steps_per_epoch=POSITION_STEPS, shuffle=False, verbose=0)
    scores = {}
    for length in LENGTHS:
        tokens = random_tokens([length] * 64, np.random.default_rng(length))
        scores[length] = evaluate(model, to_copy(tokens), tokens)
    return scores


def main():
    what, name, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    keras.utils.set_random_seed(seed)
    start = time.perf_counter()
    train = {"attention": train_attention, "position": train_position}[what]
    scores = train(name, np.random.default_rng(1000 + seed))
    print(json.dumps({"scores": scores, "seconds": time.perf_counter() - start}))


if __name__ == "__main__":
    main()
