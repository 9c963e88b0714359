"""Thirty-two real sentence pairs are learnt by heart, down to what label smoothing leaves."""

import gzip
import math
import os
from pathlib import Path

import numpy as np
import pytest

from keras_transformer.data import SubwordTokenizer
from keras_transformer.inference.translator import Translator
from keras_transformer.models import TrainingRecipe, Transformer, TransformerConfig
from keras_transformer.training import compile_model

pytestmark = pytest.mark.slow

PAIRS, SMOOTHING = 32, 0.1


@pytest.fixture(scope="module")
def pairs():
    folder = os.environ.get("KERAS_TRANSFORMER_DATA")
    if not folder or not (Path(folder) / "multi30k").is_dir():
        pytest.skip("KERAS_TRANSFORMER_DATA names no folder with multi30k/")
    columns = []
    for language in ("en", "de"):
        path = Path(folder) / "multi30k" / f"train.{language}.gz"
        with gzip.open(path, "rt", encoding="utf-8") as file:
            columns.append([next(file).strip() for _ in range(PAIRS)])
    return list(zip(*columns, strict=True))


def test_loss_reaches_the_entropy_of_the_smoothed_labels(pairs):
    words = {word for pair in pairs for text in pair for word in text.split()}
    tokenizer = SubwordTokenizer(sorted(words))
    layers = {"num_encoder_layers": 2, "num_decoder_layers": 2}
    sizes = {"d_model": 64, "intermediate_dim": 128, "num_heads": 4, "dropout": 0.0}
    config = TransformerConfig(vocab_size=tokenizer.vocab_size, **layers, **sizes)
    recipe = TrainingRecipe(peak_learning_rate=3e-3, warmup_steps=100, label_smoothing=SMOOTHING)
    model = compile_model(Transformer(config), recipe)
    inputs, labels, weights = _one_batch(pairs, tokenizer)
    history = model.fit(
        inputs, labels, sample_weight=weights, batch_size=PAIRS, epochs=500, verbose=0
    )
    # Section 5.4: the best that a model can do is the entropy of 1 - e on the label and
    # e / (V - 1) on each other token.
    vocabulary = tokenizer.vocab_size
    floor = -(1 - SMOOTHING) * math.log(1 - SMOOTHING)
    floor -= SMOOTHING * math.log(SMOOTHING / (vocabulary - 1))
    loss = history.history["loss"][-1]
    assert floor - 1e-4 < loss < floor + 0.04
    translator = Translator(model, tokenizer)
    assert translator.translate([source for source, _ in pairs]) == [target for _, target in pairs]


def _one_batch(pairs, tokenizer):
    """Keras must not shuffle the weights away: the batch is the whole data."""
    sources = [tokenizer.encode(source) + [3] for source, _ in pairs]
    labels = [tokenizer.encode(target) + [3] for _, target in pairs]
    target = _padded([[2, *row[:-1]] for row in labels])
    labels = _padded(labels)
    mask = labels > 0
    weights = (mask / mask.sum()).astype("float32")
    return {"source": _padded(sources), "target": target}, labels, weights


def _padded(rows):
    width = max(len(row) for row in rows)
    return np.array([row + [0] * (width - len(row)) for row in rows], "int32")
