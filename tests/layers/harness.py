"""What every layer promises, checked by one call of `check_layer`."""

import os
import tempfile
import warnings

import keras
import numpy as np
from keras import ops

TOLERANCES = {
    "float64": 1e-12,
    "float32": 1e-5,
    "mixed_bfloat16": 0.1,
    "mixed_float16": 1e-2,
}


def check_layer(
    make,
    inputs,
    num_weights,
    num_seed_generators=0,
    output_shape=None,
    float_output=None,
):
    """Check the promises of a layer.

    Args:
        make: Function of `dtype=...`, or of nothing, that returns a new layer.
        inputs: Dict of call arguments to NumPy arrays, the first positional.
        num_weights: Number of weights once built.
        num_seed_generators: Number of random states once built.
        output_shape: Shape of the output; None for that of the first input.
        float_output: Dtype that the output never falls below, or None.
    """
    expected_shape = output_shape or next(iter(inputs.values())).shape
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Keras's own, on saving, with NumPy 2.
        warnings.filterwarnings("ignore", "__array__ implementation", DeprecationWarning)
        _check_policies(make, inputs, expected_shape, float_output)
        layer = make()
        _check_config(layer)
        call(layer, inputs)
        assert layer.built
        assert len(layer.weights) == num_weights
        assert len(layer.variables) - num_weights == num_seed_generators
        model = _check_symbolic(layer, inputs, expected_shape)
        if num_weights:
            _check_training(make(), inputs, expected_shape)
        _check_reload(model, inputs, num_weights)


def _check_policies(make, inputs, expected_shape, float_output):
    """Every policy gives its dtype, keeps its weights, and computes what float64 computes."""
    reference = weights = None
    for policy, tolerance in TOLERANCES.items():
        layer = make(dtype=policy)
        outputs = call(layer, inputs)
        assert outputs.shape == expected_shape
        dtype = keras.dtype_policies.get(policy).compute_dtype
        if float_output:
            dtype = keras.backend.result_type(dtype, float_output)
        assert keras.backend.standardize_dtype(outputs.dtype) == dtype, policy
        for weight in layer.weights:
            assert weight.dtype == ("float64" if policy == "float64" else "float32"), weight.path
        if reference is None:
            reference, weights = outputs, layer.get_weights()
        layer.set_weights(weights)
        _assert_close(call(layer, inputs), reference, tolerance, policy)


def call(layer, inputs, **kwargs):
    first, *others = inputs
    return layer(inputs[first], **{name: inputs[name] for name in others}, **kwargs)


def _assert_close(actual, expected, tolerance, what):
    actual, expected = (np.asarray(ops.cast(x, "float64")) for x in (actual, expected))
    assert np.isfinite(actual).all(), what
    scale = max(1.0, np.abs(expected).max())
    assert np.abs(actual - expected).max() <= tolerance * scale, what


def _check_config(layer):
    layer_class = type(layer)
    config = layer.get_config()
    again = layer_class.from_config(config)
    assert again.get_config() == config
    registered = keras.saving.get_registered_name(layer_class)
    assert registered == f"keras_transformer>{layer_class.__name__}"
    serialized = keras.saving.serialize_keras_object(layer)
    assert type(keras.saving.deserialize_keras_object(serialized)) is layer_class


def _symbolic(inputs):
    """Inputs of unknown batch and lengths; the width of floating inputs is known."""
    symbolic = {}
    for name, value in inputs.items():
        width = value.shape[-1] if value.dtype.kind == "f" else None
        dtype = keras.backend.standardize_dtype(value.dtype)
        shape = (*(None,) * (value.ndim - 2), width)
        symbolic[name] = keras.Input(shape, name=name, dtype=dtype)
    return symbolic


def _check_symbolic(layer, inputs, expected_shape):
    """Lengths are unknown; the last axis and the rank are declared."""
    symbolic = _symbolic(inputs)
    outputs = call(layer, symbolic)
    assert len(outputs.shape) == len(expected_shape)
    assert outputs.shape[-1] == expected_shape[-1]
    assert outputs.shape[0] is None
    eager = call(layer, inputs)
    assert keras.backend.standardize_dtype(eager.dtype) == outputs.dtype
    model = keras.Model(symbolic, outputs)
    _assert_close(model(inputs), eager, 1e-6, "functional")
    static = call(
        layer,
        {
            name: keras.KerasTensor(value.shape, keras.backend.standardize_dtype(value.dtype))
            for name, value in inputs.items()
        },
    )
    assert static.shape == expected_shape
    return model


def _check_training(layer, inputs, expected_shape):
    """One compiled step moves every weight and leaves it finite."""
    symbolic = _symbolic(inputs)
    model = keras.Model(symbolic, call(layer, symbolic))
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse", jit_compile=False)
    before = layer.get_weights()
    targets = np.random.default_rng(1).normal(size=expected_shape).astype("float32")
    loss = model.train_on_batch(inputs, targets)
    assert np.isfinite(loss)
    for weight, old, new in zip(layer.weights, before, layer.get_weights(), strict=True):
        assert np.isfinite(new).all(), weight.path
        assert not weight.trainable or np.any(new != old), f"{weight.path} did not move"


def _check_reload(model, inputs, num_weights):
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "model.keras")
        model.save(path)
        again = keras.saving.load_model(path)
    assert len(again.weights) == num_weights
    for one, other in zip(model.weights, again.weights, strict=True):
        assert one.shape == other.shape
    _assert_close(again(inputs), model(inputs), 0.0, "reloaded")
