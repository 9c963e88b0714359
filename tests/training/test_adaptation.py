"""Adapting a model: frozen parts, another vocabulary, and a second validation set."""

import numpy as np
import pytest

from keras_transformer.data import SubwordTokenizer
from keras_transformer.errors import UserError
from keras_transformer.inference.translator import Translator
from keras_transformer.models import Transformer
from keras_transformer.training import train
from tests.training.test_trainer import RECIPE, SMALL, WORDS, corpus, run, settings
from tests.training.uncompiled import AtStep

pytestmark = [
    pytest.mark.tensorflow_only("`train` reads its data with tf.data"),
    pytest.mark.usefixtures("uncompiled"),
]
PARTS = ("encoder", "decoder", "embedding")


@pytest.fixture(scope="module")
def general(tmp_path_factory):
    """The directory of a model, and the model."""
    tokenizer = SubwordTokenizer(WORDS)
    model = Transformer.from_preset("tiny", tokenizer.vocab_size, **SMALL)
    return str(Translator(model, tokenizer).save(tmp_path_factory.mktemp("general"))), model


def weights_of(model):
    """The weights of each part of a model."""
    parts = model.encoder, model.decoder, model.target_embedding
    return {name: layer.get_weights() for name, layer in zip(PARTS, parts, strict=True)}


@pytest.mark.parametrize(
    "freeze", [("encoder",), pytest.param(("decoder", "embedding"), marks=pytest.mark.slow)]
)
def test_frozen_parts_stay_as_they_were_and_are_trained_again_later(tmp_path, general, freeze):
    start = {"start_from": general[0], "model": {}, "freeze": freeze, "checkpoint_every": 1}
    recipe, lines, variables = {**RECIPE, "ema_momentum": 0.5}, [], []
    callback = AtStep(1, lambda model: variables.extend(model.optimizer.variables))
    result = run(tmp_path, lines, [callback], **start, recipe=recipe, max_steps=2, streams=2)
    assert f" parameters, {' and '.join(freeze)} frozen, on " in "".join(lines)
    before, after = weights_of(general[1]), weights_of(result.translator.model)
    for name in PARTS:
        is_equal = all(map(np.array_equal, before[name], after[name]))
        assert is_equal == (name in freeze), name
    # The number of steps, and Adam's moments and the average of each trained weight.
    counts = {name: len(weights) for name, weights in before.items()}
    assert len(variables) == 1 + 3 * sum(counts[name] for name in counts.keys() - set(freeze))
    loaded = Translator.load(tmp_path).model
    assert len(loaded.trainable_weights) == len(loaded.weights) == sum(counts.values())
    with pytest.raises(UserError, match=rf"freeze was \['{freeze[0]}'.*\], now None"):
        run(tmp_path, **{**start, "freeze": None}, recipe=recipe, max_steps=3)
    assert run(tmp_path, **start, recipe=recipe, max_steps=3).steps == 3


def test_a_second_validation_set_is_scored_like_the_first(tmp_path, general):
    start = {"start_from": general[0], "model": {}, "bleu_every": 2, "evaluate_every": 1}
    lines: list[str] = []
    also_valid = {"same": corpus(2, 8), "other": corpus(3, 8)}
    result = run(tmp_path / "two", lines, **start, max_steps=2, also_valid=also_valid)
    names = ["loss", "perplexity", "accuracy", "bleu"]
    for row in result.history:
        assert [row[f"same_{name}"] for name in names] == [row[f"valid_{name}"] for name in names]
        assert bool(row["other_bleu"]) == bool(row["valid_bleu"]) == (row["step"] != "1")
    assert [row["step"] for row in result.history] == ["0", "1", "2"]
    scores = Translator.load(general[0]).score(*zip(*corpus(3, 8), strict=True))
    loss = -sum(x.log_probability for x in scores) / sum(x.num_tokens for x in scores)
    assert float(result.history[0]["other_loss"]) == pytest.approx(loss, abs=1e-4)
    assert sum(line.startswith("other loss ") for line in lines) == 4  # once for the final weights


@pytest.mark.slow
def test_a_second_validation_set_chooses_nothing_and_may_change(tmp_path, general):
    start = {"start_from": general[0], "model": {}, "bleu_every": 1, "evaluate_every": 1}
    alone = run(tmp_path / "one", **start, max_steps=2)
    with_other = run(tmp_path / "two", **start, max_steps=2, also_valid={"other": corpus(3, 8)})
    for name, weights in weights_of(alone.translator.model).items():
        assert all(map(np.array_equal, weights, weights_of(with_other.translator.model)[name]))
    rows = run(tmp_path / "two", **start, max_steps=3, also_valid={"new": corpus(4, 8)}).history
    assert [bool(row["other_loss"]) for row in rows] == [True, True, True, False]
    assert [bool(row["new_loss"]) for row in rows] == [False, False, False, True]


@pytest.mark.parametrize("name, valid", [("valid", True), ("train", True), ("general", False)])
def test_a_second_validation_set_needs_a_first_and_a_name_of_its_own(tmp_path, name, valid):
    also_valid = {name: corpus(2, 8)}
    with pytest.raises(ValueError, match=f"needs `valid_corpus`. Received: {name}"):
        train(tmp_path, corpus(1), corpus(2) if valid else None, settings(), also_valid=also_valid)
