"""A small Transformer learns what it must be able to learn: copy, reverse, sort, add up.

Held-out sequences must come out whole, from greedy search, at least 99 times in 100; and the
attention of the reversal shows how it is done.
"""

import functools
import os
from pathlib import Path

import keras
import numpy as np
import pytest

from keras_transformer.decoding import GreedySearch, compile_search
from keras_transformer.evaluation import plot_attention
from keras_transformer.models import TrainingRecipe, Transformer, TransformerConfig
from keras_transformer.training import compile_model

pytestmark = pytest.mark.slow

PADDING, BOS, EOS, FIRST = 0, 2, 3, 4
SHORTEST, LONGEST = 2, 10
BATCH = 128
# Adding up is harder than moving digits about: fewer digits, more steps.
LONGEST_OF = {"digit_sum": 5}
STEPS_OF = {"digit_sum": 3000}
EPOCHS = 10


def digit_sum(digits):
    return [int(digit) for digit in str(sum(digits))]


TASKS = {
    "copy": list,
    "reverse": lambda digits: digits[::-1],
    "sort": sorted,
    "digit_sum": digit_sum,
}


def sequences(count, longest, generator):
    """Distinct rows of digits, in no order."""
    found = set()
    while len(found) < count:
        length = generator.integers(SHORTEST, longest + 1)
        found.add(tuple(int(digit) for digit in generator.integers(0, 10, length)))
    ordered = sorted(found)
    return [ordered[index] for index in generator.permutation(count)]


def ids(rows):
    """Digits as ids, padded to the longest that can come, EOS and all."""
    array = np.full((len(rows), LONGEST + 1), PADDING, "int32")
    for row, digits in zip(array, rows, strict=True):
        row[: len(digits) + 1] = [FIRST + digit for digit in digits] + [EOS]
    return array


def training_batch(pairs):
    source, labels = ids([source for source, _ in pairs]), ids([target for _, target in pairs])
    target = np.concatenate([np.full_like(labels[:, :1], BOS), labels[:, :-1]], axis=1)
    target[labels == PADDING] = PADDING
    mask = labels != PADDING
    return {"source": source, "target": target}, labels, (mask / mask.sum()).astype("float32")


@functools.cache
def trained(task):
    """A model that learnt the task, at its best on validation pairs, and pairs it has not seen."""
    keras.utils.set_random_seed(0)
    generator = np.random.default_rng(0)
    digits = sequences(21_000, LONGEST_OF.get(task, LONGEST), generator)
    pairs = [(row, TASKS[task](list(row))) for row in digits]
    held_out, valid, training = pairs[:1000], pairs[1000:1500], pairs[1500:]
    config = TransformerConfig(
        vocab_size=FIRST + 10,
        num_encoder_layers=2,
        num_decoder_layers=2,
        d_model=64,
        intermediate_dim=128,
        num_heads=4,
        dropout=0.0,
    )
    recipe = TrainingRecipe(peak_learning_rate=2e-3, warmup_steps=300, label_smoothing=0.0)
    model = compile_model(Transformer(config), recipe)

    def batches():
        while True:
            chosen = generator.integers(0, len(training), BATCH)
            yield training_batch([training[index] for index in chosen])

    # At this learning rate the loss has peaks, and the last step may be in one.
    best = keras.callbacks.EarlyStopping("val_loss", patience=EPOCHS, restore_best_weights=True)
    model.fit(
        batches(),
        validation_data=training_batch(valid),
        steps_per_epoch=STEPS_OF.get(task, 2500) // EPOCHS,
        epochs=EPOCHS,
        callbacks=[best],
        shuffle=False,
        verbose=0,
    )
    return model, held_out


def answers(model, sources):
    """Greedy search over the whole batch, the digits up to EOS."""

    def search(source, max_lengths, max_length):
        state = model.start_decoding(source, max_length=max_length)
        return GreedySearch()(model.decode_step, state, max_lengths, max_length).tokens

    compiled = compile_search(search, model.variables, sizes=("max_length",))
    limits = np.full(len(sources), LONGEST + 5, "int32")
    tokens = keras.ops.convert_to_numpy(compiled(ids(sources), limits, max_length=LONGEST + 5))
    rows = []
    for row in tokens[:, 0].tolist():
        row = row[: row.index(EOS)] if EOS in row else row
        rows.append([token - FIRST for token in row])
    return rows


@pytest.mark.parametrize("task", TASKS)
def test_task_is_learnt(task):
    model, held_out = trained(task)
    found = answers(model, [source for source, _ in held_out])
    right = [answer == target for answer, (_, target) in zip(found, held_out, strict=True)]
    assert np.mean(right) >= 0.99


def test_attention_of_the_reversal_is_anti_diagonal(tmp_path):
    model, held_out = trained("reverse")
    longest = [pair for pair in held_out if len(pair[0]) == LONGEST][:100]
    inputs, _, _ = training_batch(longest)
    scores = model.attention_scores(inputs["source"], inputs["target"])["cross"]
    # Last block, mean of its heads: [sentences, target position, source position], digits alone.
    scores = keras.ops.convert_to_numpy(scores[-1]).mean(axis=1)[:, :LONGEST, :LONGEST]
    anti_diagonal = np.arange(LONGEST)[::-1]
    # The label of target position i is the source's digit LONGEST - 1 - i.
    hits = scores.argmax(axis=-1) == anti_diagonal
    digits = [str(digit) for digit in longest[0][0]]
    folder = Path(os.environ.get("KERAS_TRANSFORMER_PLOTS", tmp_path))
    plot_attention(scores[0], digits, digits[::-1], folder / "reversal.png")
    assert hits.mean() >= 0.9  # The rest are mostly runs of one digit, where either will do.
