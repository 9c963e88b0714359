"""What every layer promises, checked by one call of `check_layer`.

A broken promise is an AssertionError that begins with the name of the promise.
"""

import inspect
import json
import os
import re
import subprocess
import sys
import tempfile

import keras
import numpy as np

from tests.closeness import assert_close
from tests.layers.oracle_parameters import array, randomize
from tests.precision.gradients import has_float64

# Keras computes in float64 on TensorFlow alone.
WIDEST = "float64" if has_float64() else "float32"
POLICIES = [*(["float64"] * has_float64()), "float32", "mixed_bfloat16", "mixed_float16"]
# Keras turns them into objects, and refuses what it does not know.
_ARGUMENTS_OF_KERAS = re.compile(r"activation|\w+_(initializer|regularizer)")


def check_layer(
    make,
    inputs,
    num_weights,
    expected,
    bad_arguments,
    num_seed_generators=0,
    output_shape=None,
    without_gradient=(),
    is_quick=False,
):
    """Check the promises of a layer.

    Args:
        make: Function of any constructor arguments, or of none, that returns a new layer.
        inputs: Dict of call arguments to NumPy arrays, the first positional.
        num_weights: Number of weights once built.
        expected: Function of a built layer and `inputs` to its outputs outside training, computed
            in NumPy float64.
        bad_arguments: Dict of every constructor argument to what its error says is allowed, and a
            list of values that are not.
        num_seed_generators: Number of random states once built.
        output_shape: Shape of the output; None for that of the first input.
        without_gradient: Ends of the paths of weights on which, by the formula, no output depends.
        is_quick: Leave out the training step, which takes most of the time.
    """
    expected_shape = output_shape or next(iter(inputs.values())).shape
    _check_config(make)
    _check_errors(make, bad_arguments)
    layer = make()
    _check_build(layer, inputs, num_weights, num_seed_generators)
    randomize(layer)
    _check_precision(make, inputs, expected, expected_shape)
    _check_integers(layer, inputs)
    _check_no_positions(layer, inputs, expected_shape)
    model = _check_symbolic(layer, inputs, expected_shape)
    _check_reload(model, inputs)
    if num_weights and not is_quick:
        _check_training(model, layer, inputs, expected_shape, without_gradient)


def decode(call, inputs, cache, stops):
    """Feed `inputs` in pieces that end at `stops` to `call(piece, cache, stop)`.

    Returns:
        The joined outputs, and the last cache.
    """
    outputs, start = [], 0
    for stop in stops:
        result, cache = call(inputs[:, start:stop], cache, stop)
        outputs.append(array(result))
        start = stop
    return np.concatenate(outputs, axis=1), cache


def call(layer, inputs, **kwargs):
    first, *others = inputs
    return layer(inputs[first], **{name: inputs[name] for name in others}, **kwargs)


def _constructor_arguments(layer_class):
    parameters = list(inspect.signature(layer_class.__init__).parameters.values())[1:]
    return {one.name for one in parameters if one.kind is not one.VAR_KEYWORD}


def _check_config(make):
    """A layer of the same settings comes from its config, in this process or from a file."""
    layer = make()
    layer_class, config = type(layer), layer.get_config()
    for name in _constructor_arguments(layer_class):
        assert name in config, f"config: {name} is missing"
        value = getattr(layer, name)
        if isinstance(value, (bool, int, float, str)):
            assert config[name] == value, f"config: {name} is {config[name]!r}, not {value!r}"
    assert layer_class.from_config(config).get_config() == config, "config: it does not come back"
    registered = keras.saving.get_registered_name(layer_class)
    assert registered == f"keras_transformer>{layer_class.__name__}", f"config: {registered}"
    serialized = json.loads(json.dumps(keras.saving.serialize_keras_object(layer)))
    again = keras.saving.deserialize_keras_object(serialized)
    assert type(again) is layer_class, f"config: {type(again)} comes back from JSON"


def _check_errors(make, bad_arguments):
    """Each argument is checked; the error says what is allowed, and ends in what was received."""
    unchecked = _constructor_arguments(type(make())) - set(bad_arguments)
    unchecked = {name for name in unchecked if not _ARGUMENTS_OF_KERAS.fullmatch(name)}
    assert not unchecked, f"errors: no bad value is known of {sorted(unchecked)}"
    for name, (allowed, values) in bad_arguments.items():
        for value in values:
            try:
                make(**{name: value})
            except ValueError as error:
                message = str(error)
            else:
                raise AssertionError(f"errors: {name}={value!r} is accepted")
            assert allowed in message, f"errors: {message!r} does not say {allowed!r}"
            received = f". Received: {name}={value!r}"
            assert message.endswith(received), f"errors: {message!r} does not end in {received!r}"


def _check_precision(make, inputs, expected, expected_shape):
    """Under every policy: the right shape and dtypes, and what `expected` computes in float64."""
    wide = {
        name: value.astype("float64") if value.dtype.kind == "f" else value
        for name, value in inputs.items()
    }
    for policy in POLICIES:
        layer = make(dtype=policy)
        outputs = call(layer, inputs)
        assert tuple(outputs.shape) == tuple(expected_shape), f"shape: {outputs.shape}"
        dtype = keras.dtype_policies.get(policy).compute_dtype
        found = keras.backend.standardize_dtype(outputs.dtype)
        assert found == dtype, f"dtype: {found}, not {dtype}, under {policy}"
        for weight in layer.weights:
            wanted = "float64" if policy == "float64" else "float32"
            assert weight.dtype == wanted, f"dtype: {weight.path} is {weight.dtype}"
        randomize(layer)
        actual, wanted = array(call(layer, inputs)), expected(layer, wide)
        assert np.isfinite(actual).all(), f"finite: not under {policy}"
        assert_close(actual, wanted, policy, scale=1.0, err_msg=f"precision: under {policy}")


def _check_build(layer, inputs, num_weights, num_seed_generators):
    """The first call builds all of it; outside training nothing is random or remembered."""
    call(layer, inputs)
    assert layer.built, "build: `built` is not set"
    assert len(layer.weights) == num_weights, f"weights: {len(layer.weights)}, not {num_weights}"
    others = len(layer.variables) - num_weights
    assert others == num_seed_generators, f"seeds: {others}, not {num_seed_generators}"
    first, second = array(call(layer, inputs)), array(call(layer, inputs))
    assert np.array_equal(first, second), "inference: two calls differ"


def _check_integers(layer, inputs):
    """Floating inputs may be given as integers, as those of `keras.layers.Dense`."""
    whole = {
        name: np.abs(np.round(3 * value)) if value.dtype.kind == "f" else value
        for name, value in inputs.items()
    }
    expected = call(layer, whole)
    for dtype in ("int32", "uint8"):
        integers = {
            name: value.astype(dtype) if value.dtype.kind == "f" else value
            for name, value in whole.items()
        }
        outputs = call(layer, integers)
        assert outputs.dtype == expected.dtype, f"integers: {outputs.dtype} of {dtype}"
        assert np.array_equal(array(outputs), array(expected)), f"integers: other of {dtype}"


def _check_no_positions(layer, inputs, expected_shape):
    """A batch of no rows, and sentences of no positions, are no error."""
    length = _length(next(iter(inputs.values())))
    for rows, positions in ((2, 0), (1, 0), (0, length), (0, 1)):
        some = _resized({name: value[:rows] for name, value in inputs.items()}, length, positions)
        found = tuple(call(layer, some).shape)
        wanted = tuple(positions if n == length else n for n in expected_shape[1:])
        assert found == (rows, *wanted), f"no positions: {found}"


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
    """What a functional model is told of the output is true; return such a model."""
    symbolic = _symbolic(inputs)
    declared, eager = call(layer, symbolic), call(layer, inputs)
    assert len(declared.shape) == len(expected_shape), f"shape: {declared.shape} is declared"
    assert declared.shape[0] is None, f"shape: a batch of {declared.shape[0]} is declared"
    assert declared.shape[-1] == expected_shape[-1], f"shape: {declared.shape} is declared"
    dtype = keras.backend.standardize_dtype(eager.dtype)
    assert declared.dtype == dtype, f"dtype: {declared.dtype} is declared for {dtype}"
    static = {
        name: keras.KerasTensor(value.shape, keras.backend.standardize_dtype(value.dtype))
        for name, value in inputs.items()
    }
    known = call(layer, static).shape
    assert tuple(known) == tuple(expected_shape), f"shape: {known} is declared, all lengths known"
    model = keras.Model(symbolic, declared)
    assert_close(array(model(inputs)), array(eager), err_msg="functional")
    return model


def _check_reload(model, inputs):
    """A model that is saved and loaded computes the same bits."""
    outputs = array(model(inputs))
    with tempfile.TemporaryDirectory() as directory:
        again = reloaded(model, directory)
    assert np.array_equal(array(again(inputs)), outputs), "reload: other outputs"


def reloaded(model, folder):
    """The model as it comes back from a `.keras` file."""
    path = os.path.join(folder, "model.keras")
    model.save(path)
    return keras.saving.load_model(path)


def _length(value):
    return value.shape[-2] if value.dtype.kind == "f" else value.shape[-1]


def _resized(inputs, length, new_length):
    """Cut all axes of size `length` to `new_length`."""
    return {
        name: value[tuple(slice(new_length if n == length else n) for n in value.shape)]
        for name, value in inputs.items()
    }


def _check_training(model, layer, inputs, expected_shape, without_gradient):
    """One compiled step has the loss of eager calls, and moves every weight a finite way."""
    targets = np.random.default_rng(1).normal(size=expected_shape).astype("float32")
    eager_loss = ((array(call(layer, inputs)) - targets) ** 2).mean()
    eager_loss += sum(array(loss) for loss in layer.losses)
    before = layer.get_weights()
    model.compile(optimizer=keras.optimizers.SGD(0.01), loss="mse")
    loss = float(model.train_on_batch(inputs, targets))
    assert np.isfinite(loss), "finite: the loss is not"
    if len(layer.variables) == len(layer.weights):  # Nothing is dropped.
        assert_close(loss, eager_loss, err_msg="compiled")
    for weight, old, new in zip(layer.weights, before, layer.get_weights(), strict=True):
        assert np.isfinite(new).all(), f"finite: {weight.path} is not after a step"
        stays = weight.path.endswith(tuple(without_gradient)) or not weight.trainable
        assert stays or np.any(new != old), f"training: {weight.path} did not move"


def reload_in_a_fresh_process(folder):
    """Load the models in `folder` where only `import keras_transformer` went before.

    Returns:
        A dict of names to the largest difference of the outputs from those before saving.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    program = os.path.join(os.path.dirname(__file__), "fresh_process.py")
    command = [sys.executable, "-W", "error:::keras_transformer", program, str(folder)]
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert result.returncode == 0, f"reload: {result.stderr}"
    return json.loads(result.stdout.splitlines()[-1])
