"""The optimizer of a recipe: the schedule of equation 3, Adam fused or not, clipping."""

import keras
import numpy as np
import pytest

from keras_transformer.models import TrainingRecipe
from keras_transformer.training import (
    FusedAdam,
    GlobalClipAdam,
    Muon,
    TransformerSchedule,
    make_optimizer,
)
from keras_transformer.training.optimizer import orthogonalized
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


OPTIMIZERS = [FusedAdam(0.1, beta_1=0.5), GlobalClipAdam(0.1, 2.0), Muon(0.1, 0.9, clip_norm=2.0)]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_config_round_trip(optimizer):
    copy = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert type(copy) is type(optimizer)
    assert copy.get_config() == optimizer.get_config()


@pytest.mark.parametrize("shape", [(6, 6), (3, 7), (7, 3)])
def test_orthogonalized_keeps_singular_vectors_and_equalizes_singular_values(shape):
    matrix = np.random.default_rng(0).normal(size=shape).astype("float32")
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    found = keras.ops.convert_to_numpy(orthogonalized(keras.ops.convert_to_tensor(matrix)))
    found_values = left.T @ found @ right.T
    assert_close(found_values, np.diag(np.diag(found_values)), sum_length=64, scale=4.0)
    assert values.min() > np.linalg.norm(matrix) / 200
    assert 0.18 < np.diag(found_values).min() and np.diag(found_values).max() < 1.87
    assert not keras.ops.convert_to_numpy(orthogonalized(keras.ops.zeros((2, 3)))).any()


def test_a_step_of_muon():
    """Sums of gradients move a kernel by singular vectors; a bias moves as with Adam."""
    generator = np.random.default_rng(0)
    weights = {"kernel": (4, 9), "embeddings": (4, 9), "bias": (9,)}
    start = {name: generator.normal(size=shape) for name, shape in weights.items()}
    steps = [[generator.normal(size=shape) for shape in weights.values()] for _ in range(2)]

    def trained(optimizer):
        variables = [keras.Variable(value, name=name) for name, value in start.items()]
        for gradients in steps:
            optimizer.apply(list(map(keras.ops.convert_to_tensor, gradients)), variables)
        return [keras.ops.convert_to_numpy(variable) for variable in variables]

    kernel, *others = trained(Muon(0.1, momentum=0.5))
    _, *expected = trained(keras.optimizers.Adam(0.1))
    assert_all_close(others, expected)

    sums, position = 0.0, start["kernel"]
    for gradient, *_ in steps:
        sums = 0.5 * sums + gradient
        direction = orthogonalized(keras.ops.convert_to_tensor(gradient + 0.5 * sums))
        position = position - 0.1 * 0.2 * 9**0.5 * keras.ops.convert_to_numpy(direction)
    assert_close(kernel, position, sum_length=64, scale=1.0)


def test_the_recipe_chooses_muon():
    recipe = TrainingRecipe(optimizer="muon", clip_norm=1.0, ema_momentum=0.9)
    optimizer = make_optimizer(recipe, d_model=128)
    assert isinstance(optimizer, Muon)
    assert (optimizer.clip_norm, optimizer.beta_2, optimizer.use_ema) == (1.0, 0.98, True)
    with pytest.raises(ValueError, match="Received: momentum=1.0"):
        Muon(0.1, momentum=1.0)


@pytest.mark.parametrize("step", [0, 3999, 99_999])
def test_equals_the_formula_with_steps_from_1(step):
    number = step + 1
    expected = 512**-0.5 * min(number**-0.5, number * 4000**-1.5)
    assert_close(float(TransformerSchedule(512)(step)), expected, sum_length=4)


def test_wrong_arguments_say_what_was_received():
    with pytest.raises(ValueError, match="Received: scale=-1.0"):
        TransformerSchedule(512, 4000, -1.0)
    with pytest.raises(ValueError, match="Received: clip_norm=0.0"):
        GlobalClipAdam(0.1, clip_norm=0.0)
