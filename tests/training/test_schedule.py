"""TransformerSchedule: equation 3 of the paper, with steps from 1."""

import keras
import numpy as np
import pytest

from keras_transformer.training import TransformerSchedule


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
    np.testing.assert_allclose(float(TransformerSchedule(512)(step)), expected, rtol=1e-6)


def test_first_step_learns_something():
    assert float(TransformerSchedule(512)(0)) > 0


def test_peak_can_be_given():
    schedule = TransformerSchedule.with_peak(5e-3, 128, 2000)
    np.testing.assert_allclose(float(schedule(1999)), 5e-3, rtol=1e-6)
    np.testing.assert_allclose(float(schedule(7999)), 2.5e-3, rtol=1e-6)


def test_config_round_trip_inside_an_optimizer():
    optimizer = keras.optimizers.Adam(TransformerSchedule(64, 100, 2.0))
    copy = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    np.testing.assert_allclose(float(copy.learning_rate), float(optimizer.learning_rate))


@pytest.mark.parametrize("arguments", [(0,), (512, 0), (512, 4000, -1.0)])
def test_wrong_arguments_say_what_was_received(arguments):
    with pytest.raises(ValueError, match="Received"):
        TransformerSchedule(*arguments)
