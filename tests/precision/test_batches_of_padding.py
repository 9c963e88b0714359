"""A batch of nothing but padding: finite everywhere, and it teaches nothing."""

import functools

import numpy as np
import pytest

from keras_transformer.models import TrainingRecipe, Transformer, TransformerConfig
from keras_transformer.training import (
    LabelSmoothedCrossEntropy,
    Perplexity,
    TokenAccuracy,
    TokenLoss,
    compile_model,
)
from tests.precision.gradients import array, value_and_gradients
from tests.precision.measurements import policies

slow = functools.partial(pytest.param, marks=pytest.mark.slow)
IDS = np.zeros((2, 4), "int32")
PADDING = {"source": IDS, "target": IDS}
WEIGHTS = np.zeros(IDS.shape, "float32")


def transformer(policy, norm):
    sizes = {"num_encoder_layers": 1, "num_decoder_layers": 1, "d_model": 8, "num_heads": 2}
    config = TransformerConfig(vocab_size=9, intermediate_dim=12, norm=norm, **sizes)
    return Transformer(config, dtype=policy)


@pytest.mark.parametrize("norm, policy", [
    ("post", "float32"),
    ("pre", "mixed_float16"),
    slow("pre", "float32"),
    *(slow("post", policy) for policy in policies() if policy != "float32"),
])  # fmt: skip
def test_forward_loss_and_gradients(norm, policy):
    model = transformer(policy, norm)
    logits = model(PADDING)
    assert np.isfinite(array(logits)).all()
    assert array(LabelSmoothedCrossEntropy(0.1)(IDS, logits, WEIGHTS)) == 0.0
    loss, gradients = value_and_gradients(
        lambda: LabelSmoothedCrossEntropy(0.1)(IDS, model(PADDING, training=True), WEIGHTS),
        model.trainable_variables,
    )
    assert loss == 0.0
    assert not any(gradient.any() for gradient in gradients)


def test_metrics_count_no_token():
    logits = transformer("float32", "post")(PADDING)
    for metric, nothing in ((TokenLoss(), 0.0), (Perplexity(), 1.0), (TokenAccuracy(), 0.0)):
        metric.update_state(IDS, logits, WEIGHTS)
        assert float(metric.result()) == nothing


@pytest.mark.parametrize(
    "policy",
    ["mixed_float16", *(slow(policy) for policy in policies() if policy != "mixed_float16")],
)
def test_a_training_step_leaves_the_weights_and_the_next_one_trains(policy):
    model = transformer(policy, "post")
    recipe = TrainingRecipe(peak_learning_rate=0.01, warmup_steps=1)
    compile_model(model, recipe, metrics=[TokenLoss()], run_eagerly=True)
    before = [array(weight) for weight in model.weights]
    logs = model.train_on_batch(PADDING, IDS, WEIGHTS, return_dict=True)
    assert logs["loss"] == 0.0 and logs["token_loss"] == 0.0
    for weight, old in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(array(weight), old, err_msg=weight.path)
    ids = np.full((2, 4), 5, "int32")
    weights = np.full(ids.shape, 1 / ids.size, "float32")
    logs = model.train_on_batch({"source": ids, "target": ids}, ids, weights, return_dict=True)
    assert np.isfinite(logs["loss"]) and logs["loss"] > 0
    now = [array(weight) for weight in model.weights]
    assert all(np.isfinite(weight).all() for weight in now)
    assert any(np.any(new != old) for new, old in zip(now, before, strict=True))
