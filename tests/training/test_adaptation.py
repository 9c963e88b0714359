"""Adapting a model: frozen parts, another vocabulary, and a second validation set."""

import numpy as np
import pytest

from keras_transformer.data import SubwordTokenizer
from keras_transformer.errors import UserError
from keras_transformer.inference.translator import Translator
from keras_transformer.models import Transformer
from tests.training.test_trainer import RECIPE, SMALL, WORDS, run
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
