"""The optimizer of a recipe: the schedule of equation 3, Adam fused or not, clipping."""

import dataclasses

import keras
import numpy as np
import pytest

from keras_transformer.models import TrainingRecipe
from keras_transformer.training import (
    FusedAdam,
    GlobalClipAdam,
    TokenLoss,
    TransformerSchedule,
    compile_model,
    make_optimizer,
)
from tests.closeness import assert_all_close, assert_close
from tests.losses.test_loss_model import VOCAB, small
from tests.training.uncompiled import RUN_EAGERLY


def fitted_weights(optimizer, steps=4):
    model = small()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, run_eagerly=RUN_EAGERLY)
    ids = np.random.default_rng(0).integers(4, VOCAB, (steps * 4, 5)).astype("int32")
    inputs = {"source": ids, "target": ids[:, ::-1]}
    model.fit(inputs, ids, batch_size=4, epochs=1, shuffle=False, verbose=0)
    return model.get_weights()


def test_fused_adam_trains_the_same_weights_as_keras_adam():
    settings = {"beta_2": 0.98, "epsilon": 1e-4}
    expected = fitted_weights(keras.optimizers.Adam(TransformerSchedule(8, 3), **settings))
    fused = fitted_weights(FusedAdam(TransformerSchedule(8, 3), **settings))
    assert_all_close(fused, expected)


@pytest.mark.slow
def test_clipping_on_one_device_equals_keras_global_clipnorm():
    settings = {"epsilon": 1e-4}
    expected = fitted_weights(keras.optimizers.Adam(0.01, global_clipnorm=0.1, **settings))
    clipped = fitted_weights(GlobalClipAdam(0.01, clip_norm=0.1, **settings))
    assert_all_close(clipped, expected)


def test_make_optimizer_has_the_numbers_of_the_recipe():
    optimizer = make_optimizer(TrainingRecipe(), d_model=512)
    assert (optimizer.beta_1, optimizer.beta_2, optimizer.epsilon) == (0.9, 0.98, 1e-9)
    schedule = optimizer.get_config()["learning_rate"]["config"]
    assert schedule == {"d_model": 512, "warmup_steps": 4000, "scale": 1.0}


def test_make_optimizer_peak_and_clipping():
    recipe = TrainingRecipe(peak_learning_rate=5e-3, warmup_steps=2000, clip_norm=1.0)
    optimizer = make_optimizer(recipe, d_model=128)
    assert isinstance(optimizer, GlobalClipAdam)
    assert optimizer.clip_norm == 1.0
    optimizer.iterations.assign(1999)
    assert_close(float(optimizer.learning_rate), 5e-3)


def test_the_sum_of_accumulated_steps_is_clipped():
    """As Keras does: the mean of two steps, then its norm."""

    def two_steps(optimizer):
        weight = keras.Variable([0.0, 0.0])
        optimizer.build([weight])
        for gradient in ([3.0, 0.0], [3.0, 0.24]):
            optimizer.apply([keras.ops.array(gradient)], [weight])
        return keras.ops.convert_to_numpy(weight)

    options = {"learning_rate": 0.1, "epsilon": 0.01, "gradient_accumulation_steps": 2}
    expected = two_steps(keras.optimizers.Adam(global_clipnorm=0.1, **options))
    assert_close(two_steps(GlobalClipAdam(clip_norm=0.1, **options)), expected)
    assert np.abs(expected - two_steps(FusedAdam(**options))).max() > 0.01


def test_the_next_values_of_float8_are_no_gradients():
    """They replace the values, and count in no norm."""

    def step(optimizer):
        weight, scale = keras.Variable([0.0]), keras.Variable([1.0])
        scale.overwrite_with_gradient = True
        gradients = [keras.ops.array([0.5]), keras.ops.array([7.0])]
        optimizer.apply(gradients, [weight, scale])
        return [float(keras.ops.convert_to_numpy(value)[0]) for value in (weight, scale)]

    expected = step(keras.optimizers.Adam(0.1, epsilon=1.0))
    assert step(GlobalClipAdam(0.1, clip_norm=1.0, epsilon=1.0)) == pytest.approx(
        expected, rel=1e-5
    )
    assert expected[1] == 7.0


def test_float8_has_no_moving_average():
    scale = keras.Variable([1.0], name="scale")
    scale.overwrite_with_gradient = True
    with pytest.raises(ValueError, match="float8. Received: use_ema=True and 'scale'"):
        FusedAdam(use_ema=True).build([keras.Variable([0.0]), scale])


@pytest.mark.parametrize("optimizer", [FusedAdam(0.1, beta_1=0.5), GlobalClipAdam(0.1, 2.0)])
def test_config_round_trip(optimizer):
    copy = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert type(copy) is type(optimizer)
    assert copy.get_config() == optimizer.get_config()


@pytest.mark.parametrize("clip_norm", [0.0, -1.0, float("inf")])
def test_wrong_clip_norm_says_what_was_received(clip_norm):
    with pytest.raises(ValueError, match="Received: clip_norm="):
        GlobalClipAdam(0.1, clip_norm=clip_norm)


@pytest.mark.slow
def test_compile_model_uses_the_recipe_and_keeps_metrics():
    recipe = dataclasses.replace(TrainingRecipe(), label_smoothing=0.2)
    model = compile_model(small(), recipe, metrics=[TokenLoss()])
    assert model.loss.label_smoothing == 0.2
    assert model.jit_compile == (keras.backend.backend() == "jax")
    ids = np.ones((2, 3), "int32")
    logs = model.train_on_batch(
        {"source": ids, "target": ids}, ids, np.full((2, 3), 1 / 6, "float32"), return_dict=True
    )
    assert {"loss", "token_loss"} <= set(logs)


@pytest.mark.parametrize(("d_model", "peak"), [(512, 6.99e-4), (1024, 4.94e-4)])
def test_peak_of_base_and_big(d_model, peak):
    schedule = TransformerSchedule(d_model)
    rates = np.array([float(schedule(step)) for step in range(3990, 4010)])
    assert rates.argmax() == 9  # Keras counts from 0: step 3,999 is s = 4,000
    np.testing.assert_allclose(rates.max(), peak, rtol=1e-3)


@pytest.mark.parametrize("step", [0, 1, 77, 3998, 3999, 4000, 99_999])
def test_equals_the_formula_with_steps_from_1(step):
    number = step + 1
    expected = 512**-0.5 * min(number**-0.5, number * 4000**-1.5)
    assert_close(float(TransformerSchedule(512)(step)), expected, sum_length=4)


def test_peak_can_be_given():
    schedule = TransformerSchedule.with_peak(5e-3, 128, 2000)
    assert_close(float(schedule(1999)), 5e-3)
    assert_close(float(schedule(7999)), 2.5e-3)


def test_the_schedule_is_saved_with_an_optimizer():
    optimizer = keras.optimizers.Adam(TransformerSchedule(64, 100, 2.0))
    copy = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert_close(float(copy.learning_rate), float(optimizer.learning_rate))


@pytest.mark.parametrize("arguments", [(0,), (512, 0), (512, 4000, -1.0)])
def test_a_wrong_schedule_says_what_was_received(arguments):
    with pytest.raises(ValueError, match="Received"):
        TransformerSchedule(*arguments)
