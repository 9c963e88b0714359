"""The schedule of equation 3, and Adam, fused or not, with clipping."""

import keras
import numpy as np
import pytest

from keras_transformer.training import (
    FusedAdam,
    GlobalClipAdam,
    Muon,
    TransformerSchedule,
)
from tests.closeness import assert_all_close, assert_close
from tests.layers.oracle_parameters import array
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


@pytest.mark.tensorflow_only("only TensorFlow has such gradients")
@pytest.mark.parametrize("amsgrad", [False, True])
def test_uses_of_a_row_are_summed_before_they_are_squared(amsgrad):
    import tensorflow as tf

    found = []
    uses = tf.IndexedSlices([[1.0], [2.0]], [0, 0], [2, 1])
    for gradient in (uses, tf.constant([[3.0], [0.0]])):
        variable = keras.Variable([[1.0], [1.0]])
        optimizer = FusedAdam(0.1, epsilon=1e-3, amsgrad=amsgrad)
        optimizer.build([variable])
        optimizer.apply([gradient])
        found.append(array(variable))
    assert_close(found[0], found[1])
    assert 0.89 < found[0][0] < 0.95


@pytest.mark.slow
def test_clipping_on_one_device_equals_keras_global_clipnorm():
    settings = {"epsilon": 1e-4}
    expected = fitted_weights(keras.optimizers.Adam(0.01, global_clipnorm=0.1, **settings))
    clipped = fitted_weights(GlobalClipAdam(0.01, clip_norm=0.1, **settings))
    assert_all_close(clipped, expected)


OPTIMIZERS = [FusedAdam(0.1, beta_1=0.5), GlobalClipAdam(0.1, 2.0), Muon(0.1, 0.9, clip_norm=2.0)]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_config_round_trip(optimizer):
    copy = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert type(copy) is type(optimizer)
    assert copy.get_config() == optimizer.get_config()


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
    weight = keras.Variable(np.zeros(3), dtype="bfloat16")
    with pytest.raises(ValueError, match="beta_2=0.999 is 1 in bfloat16"):
        FusedAdam(0.1).build([weight])
    FusedAdam(0.1, beta_2=0.98).build([weight])
