"""Learning rates by part of a model: `LayerwiseAdam(factors={path: factor})`.

Keras has none; gradients that are scaled change nothing under Adam, which divides by their size.
"""

import keras
import numpy as np
import pytest

from keras_transformer.training import FusedAdam, LayerwiseAdam, TransformerSchedule
from tests.closeness import assert_close
from tests.composition.answers import tiny_transformer
from tests.layers.harness import reloaded

IDS = np.random.default_rng(1).integers(4, 20, (8, 5)).astype("int32")
INPUTS = {"source": IDS, "target": IDS[:, ::-1].copy()}


def make_transformer(optimizer):
    keras.utils.set_random_seed(1)
    model = tiny_transformer(num_encoder_layers=2, dropout=0.0)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, run_eagerly=True)
    return model


def make_dense_model(optimizer):
    keras.utils.set_random_seed(1)
    names = ["block_1", "block_10", "head"]
    layers = [keras.layers.Dense(20, activation="tanh", name=name) for name in names]
    model = keras.Sequential([keras.Input((5,)), *layers])
    model.compile(optimizer, "mse", run_eagerly=True)
    return model


def step_of(model, inputs, labels):
    """What one step adds to each weight, by path."""
    before = {weight.path: weight.numpy() for weight in model.weights}
    model.train_on_batch(inputs, labels)
    return {weight.path: weight.numpy() - before[weight.path] for weight in model.weights}


def test_a_step_of_a_transformer_is_that_of_adam_times_the_factors():
    factors = {"embedding": 0.0, "encoder": 0.5, "encoder/block_1": 0.1}
    whole = step_of(make_transformer(FusedAdam(1e-2)), INPUTS, IDS)
    scaled = step_of(make_transformer(LayerwiseAdam(1e-2, factors=factors)), INPUTS, IDS)
    expected = {"embedding/": 0.0, "encoder/block_0/": 0.5, "encoder/block_1/": 0.1, "decoder/": 1}
    for path, step in whole.items():
        (factor,) = (value for part, value in expected.items() if path.startswith(part))
        assert np.abs(step).max() > 1e-3, path
        assert_close(scaled[path], factor * step, sum_length=1, scale=1.0, err_msg=path)


@pytest.mark.parametrize("settings", [{}, {"use_ema": True}, {"global_clipnorm": 0.1}])
def test_the_factor_of_block_1_is_not_that_of_block_10(settings):
    inputs, labels = np.ones((2, 5), "float32"), np.ones((2, 20), "float32")
    whole = step_of(make_dense_model(FusedAdam(1e-2, **settings)), inputs, labels)
    optimizer = LayerwiseAdam(1e-2, factors={"block_1": 0.1}, **settings)
    scaled = step_of(make_dense_model(optimizer), inputs, labels)
    for name, factor in {"block_1": 0.1, "block_10": 1.0, "head": 1.0}.items():
        (step,), (scaled_step,) = (
            [step for path, step in steps.items() if f"/{name}/kernel" in path]
            for steps in (whole, scaled)  # Keras puts the model's name in front of the path.
        )
        assert np.abs(step).max() > 1e-3
        assert_close(scaled_step, factor * step, sum_length=1, scale=1.0)


def test_it_takes_a_schedule_and_is_saved_with_the_model(tmp_path):
    schedule = TransformerSchedule(d_model=8, warmup_steps=4)
    optimizer = LayerwiseAdam(schedule, factors={"block_1": 0.1}, beta_2=0.98)
    model = make_dense_model(optimizer)
    data = np.ones((8, 5), "float32"), np.ones((8, 20), "float32")
    model.fit(*data, batch_size=4, shuffle=False, verbose=0)
    again = reloaded(model, tmp_path)
    assert again.optimizer.get_config() == model.optimizer.get_config()
    for m in (model, again):
        m.fit(*data, batch_size=4, shuffle=False, verbose=0)
    for one, other in zip(model.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_path_that_fits_nothing_is_an_error():
    model = make_dense_model(LayerwiseAdam(factors={"bloc": 0.1}))
    with pytest.raises(ValueError, match="Received: factors with 'bloc'"):
        model.train_on_batch(np.ones((2, 5)), np.ones((2, 20)))


@pytest.mark.parametrize("factor", [-0.1, float("nan"), float("inf")])
def test_a_factor_must_be_a_number_of_at_least_0(factor):
    with pytest.raises(ValueError, match="Received: factors"):
        LayerwiseAdam(factors={"encoder": factor})
