"""A step in parts is the step of the whole batch, however the tokens are spread over the parts."""

import warnings

import keras
import numpy as np
import pytest

from keras_transformer.models import TrainingRecipe
from keras_transformer.training import GlobalClipAdam, TokenAccuracy, TokenLoss, compile_model
from tests.closeness import assert_all_close, assert_close
from tests.losses.test_loss_model import small

pytestmark = pytest.mark.tensorflow_only("steps in parts need the TensorFlow backend")


def batch(rows=6, length=5):
    """One row is full, the next has one token, and so on: no two parts weigh the same."""
    generator = np.random.default_rng(0)
    ids = generator.integers(4, 12, (rows, length)).astype("int32")
    lengths = np.resize([length, 1, 3], rows)
    ids[np.arange(length) >= lengths[:, None]] = 0
    mask = (ids != 0).astype("float32")
    return {"source": ids, "target": ids}, np.roll(ids, -1, axis=1), mask / mask.sum()


def make(micro_batches, optimizer=None, dtype="float32", dropout=0.0, compiles=False, **recipe):
    model = small(dtype, dropout=dropout)
    # Steps in parts are compiled in the tests of `LossModel`, too.
    how = {"run_eagerly": not compiles}
    compile_model(model, TrainingRecipe(**recipe), [TokenLoss(), TokenAccuracy()], **how)
    if optimizer is not None:
        model.optimizer = optimizer
    model.micro_batches = micro_batches
    return model


def train(model, data=None):
    """Three steps: what each reported, and the weights."""
    data = data or batch()
    return [model.train_on_batch(*data, return_dict=True) for _ in range(3)], model.get_weights()


def assert_same(found, expected):
    for step, expected_step in zip(found[0], expected[0], strict=True):
        assert step.keys() == expected_step.keys()
        for name, value in step.items():
            assert_close(value, expected_step[name], err_msg=name)
    assert_all_close(found[1], expected[1])


@pytest.mark.parametrize(
    "micro_batches, streams",
    [(3, 3), *(pytest.param(*sizes, marks=pytest.mark.slow) for sizes in ((2, 1), (1, 4)))],
)
def test_losses_metrics_and_weights_are_those_of_the_whole_batch(micro_batches, streams):
    """Also with uneven streams, and streams without rows."""
    expected = train(make(1, keras.optimizers.SGD(0.3)))
    model = make(micro_batches, keras.optimizers.SGD(0.3), compiles=True)
    model.streams = streams
    assert_same(train(model), expected)


@pytest.mark.slow
def test_regularizers_count_once():
    results = []
    for micro_batches, streams in ((1, 1), (3, 2)):
        model = make(micro_batches, keras.optimizers.SGD(0.1))
        model.streams = streams
        model.target_embedding.embeddings.regularizer = keras.regularizers.L2(1.0)
        results.append(train(model))
    assert_same(results[1], results[0])


def test_rows_that_cannot_be_cut_are_refused():
    with pytest.raises(Exception, match="must be a multiple of 4"):
        train(make(4))


@pytest.mark.slow
def test_the_scales_of_float8_are_those_of_the_whole_batch():
    """The "gradients" of these variables are their next values, which nothing clips or adds up."""

    def scales(optimizer, **parts):
        model = make(1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.quantize("float8")
        model.compile(optimizer, model.loss)  # Keras trains float8 in graphs only.
        for name, value in parts.items():
            setattr(model, name, value)
        for _ in range(2):
            model.train_on_batch(*batch())
        weights = [weight for weight in model.trainable_weights if weight.overwrite_with_gradient]
        return [keras.ops.convert_to_numpy(weight) for weight in weights]

    expected = scales(keras.optimizers.Adam(1e-7))
    found = scales(GlobalClipAdam(1e-7, clip_norm=1e-3), micro_batches=3, streams=2)
    assert len(found) == len(expected) > 50
    for one, other in zip(found, expected, strict=True):
        assert np.abs(one - other).max() <= 0.01 * np.abs(other).max()
