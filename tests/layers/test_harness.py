"""The harness catches every broken promise: toy layers that each break one."""

import warnings

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.checks import check_positive_number
from tests.layers.harness import check_layer
from tests.layers.oracle_parameters import array

INPUTS = {"inputs": np.random.default_rng(1).normal(size=(2, 3, 4)).astype("float32")}
BAD_ARGUMENTS = {"factor": ("must be a number greater than 0", [0, "1"])}
register = keras.saving.register_keras_serializable(package="test_harness")


@register
class Sound(keras.layers.Layer):
    """`inputs * scale * factor + bias`; keeps every promise."""

    def __init__(self, factor=0.1, **kwargs):
        super().__init__(**kwargs)
        check_positive_number("factor", factor)
        self.factor = factor

    def build(self, inputs_shape):
        self.scale = self.add_weight(name="scale", shape=inputs_shape[-1:], initializer="ones")
        self.bias = self.add_weight(name="bias", shape=inputs_shape[-1:], initializer="zeros")
        self.built = True

    def call(self, inputs):
        return inputs * self.scale * self.factor + self.bias

    def compute_output_shape(self, inputs_shape):
        return inputs_shape

    def get_config(self):
        return {**super().get_config(), "factor": self.factor}


call, config = Sound.call, Sound.get_config


def init_without_a_check(layer, factor=0.1, **kwargs):
    keras.layers.Layer.__init__(layer, **kwargs)
    layer.factor = factor


def init_with_the_error(message):
    def init(layer, factor=0.1, **kwargs):
        if factor == 0 or isinstance(factor, str):
            raise ValueError(message.format(factor=factor))
        init_without_a_check(layer, factor, **kwargs)

    return init


def init_with_another_argument(layer, factor=0.1, power=1, **kwargs):
    Sound.__init__(layer, factor, **kwargs)
    layer.power = power


def build_with_a_weight_too_many(layer, inputs_shape):
    layer.spare = layer.add_weight(name="spare", shape=(1,), initializer="zeros")
    Sound.build(layer, inputs_shape)


def build_with_a_random_state(layer, inputs_shape):
    layer.seed_generator = keras.random.SeedGenerator(1)
    Sound.build(layer, inputs_shape)


def build_with_a_half_precision_weight(layer, inputs_shape):
    shape, dtype = inputs_shape[-1:], layer.compute_dtype
    layer.scale = layer.add_weight(name="scale", shape=shape, initializer="ones")
    layer.bias = layer.add_weight(name="bias", shape=shape, initializer="zeros", dtype=dtype)


def build_with_an_unbuilt_part(layer, inputs_shape):
    layer.part = keras.layers.Dense(inputs_shape[-1])
    Sound.build(layer, inputs_shape)


def call_in_integers(layer, inputs):
    product = ops.cast(inputs * ops.cast(layer.scale, inputs.dtype), layer.compute_dtype)
    return product * layer.factor + layer.bias


def call_that_adds_a_position_to_none(layer, inputs):
    outputs = call(layer, inputs)
    return ops.pad(outputs, [(0, 0), (0, 1), (0, 0)]) if inputs.shape[1] == 0 else outputs


def call_with_noise(layer, inputs):
    noise = keras.random.normal(ops.shape(inputs), dtype=inputs.dtype)
    return call(layer, inputs) + 1e-6 * noise


def call_that_differs_in_graphs(layer, inputs):
    return call(layer, inputs) * (1 if hasattr(inputs, "numpy") else 2)


def call_that_warns(layer, inputs):
    warnings.warn("something is deprecated", DeprecationWarning, stacklevel=2)
    return call(layer, inputs)


def float32_constant(layer, inputs):
    return inputs * layer.scale * float(np.float32(layer.factor)) + layer.bias


# Promise -> name of a layer that breaks it -> its methods that differ from those of `Sound`.
BROKEN = {
    "config": {
        "ForgetsAKey": {"get_config": lambda layer: keras.layers.Layer.get_config(layer)},
        "ForgetsAValue": {"get_config": lambda layer: {**config(layer), "factor": 0.1}},
        "AddsToItsConfig": {
            "get_config": lambda layer: {**config(layer), "name": f"{layer.name}_1"}
        },
        "HasAnotherName": {},
    },
    "errors": {
        "AcceptsAnything": {"__init__": init_without_a_check},
        "DoesNotSayWhatIsAllowed": {
            "__init__": init_with_the_error("Wrong. Received: factor={factor!r}")
        },
        "DoesNotSayWhatItReceived": {
            "__init__": init_with_the_error("`factor` must be a number greater than 0.")
        },
        "HasAnArgumentThatNothingChecks": {
            "__init__": init_with_another_argument,
            "get_config": lambda layer: {**config(layer), "power": layer.power},
        },
    },
    "shape": {
        "ChangesTheShape": {"call": lambda layer, inputs: call(layer, inputs)[:, :1]},
        "DeclaresAnotherShape": {
            "compute_output_shape": lambda layer, inputs_shape: (*inputs_shape[:-1], 7)
        },
        "DeclaresAnotherLength": {
            "compute_output_shape": lambda layer, inputs_shape: (None, 1, inputs_shape[-1])
        },
    },
    "dtype": {
        "IgnoresTheComputeDtype": {
            "call": lambda layer, inputs: ops.cast(call(layer, inputs), "float32")
        },
        "DeclaresAnotherDtype": {
            "compute_output_spec": lambda layer, inputs: keras.KerasTensor(inputs.shape, "float16")
        },
        "HasHalfPrecisionWeights": {"build": build_with_a_half_precision_weight},
    },
    "finite": {
        "GivesNan": {"call": lambda layer, inputs: call(layer, inputs) + 0 * ops.log(inputs)},
        "HasNanGradients": {
            "call": lambda layer, inputs: (
                call(layer, inputs) + ops.sqrt(ops.abs(layer.scale - layer.scale))
            )
        },
    },
    "precision": {
        "HasAFloat32Constant": {"call": float32_constant},
        "ComputesInHalfPrecision": {
            "call": lambda layer, inputs: ops.cast(
                ops.cast(call(layer, inputs), "bfloat16"), layer.compute_dtype
            )
        },
        "IgnoresItsBias": {"call": lambda layer, inputs: inputs * layer.scale * layer.factor},
    },
    "weights": {
        "HasAWeightTooMany": {
            "build": build_with_a_weight_too_many,
            "call": lambda layer, inputs: call(layer, inputs) + layer.spare - layer.spare,
        },
    },
    "seeds": {"HasARandomState": {"build": build_with_a_random_state}},
    "inference": {"IsRandomAtInference": {"call": call_with_noise}},
    "integers": {"ComputesInIntegers": {"call": call_in_integers}},
    "no positions": {"PutsAPositionInPlaceOfNone": {"call": call_that_adds_a_position_to_none}},
    "quantize": {"HasAPartThatIsNotBuilt": {"build": build_with_an_unbuilt_part}},
    "reload": {
        "ForgetsItsWeights": {
            "save_own_variables": lambda layer, store: None,
            "load_own_variables": lambda layer, store: None,
        },
    },
    "training": {
        "LosesAGradient": {
            "call": lambda layer, inputs: (
                inputs * layer.scale * layer.factor + ops.stop_gradient(layer.bias)
            )
        },
    },
    "compiled": {"ChangesWhenCompiled": {"call": call_that_differs_in_graphs}},
    # Keras names its variables after it, and TensorFlow refuses such names in an export.
    "export": {"_BeginsWithAnUnderscore": {}},
    "warnings": {"Warns": {"call": call_that_warns}},
}
TENSORFLOW_ONLY = {
    "HasAFloat32Constant": "elsewhere Keras computes in float32 at most",
    "ChangesWhenCompiled": "its eager tensors are told by `numpy`",
    "_BeginsWithAnUnderscore": "Keras exports there",
}


def check(layer_class):
    def make(factor=0.3, **kwargs):
        return layer_class(factor, **kwargs)

    def expected(layer, inputs):
        return inputs["inputs"] * array(layer.scale) * layer.factor + array(layer.bias)

    check_layer(make, INPUTS, 2, expected, BAD_ARGUMENTS, package="test_harness")


def test_a_sound_layer_passes():
    check(Sound)


def toy(promise, name):
    reason = TENSORFLOW_ONLY.get(name)
    return pytest.param(
        promise, name, marks=[pytest.mark.tensorflow_only(reason)] if reason else []
    )


@pytest.mark.parametrize(
    "promise, name", [toy(promise, name) for promise in BROKEN for name in BROKEN[promise]]
)
def test_a_broken_promise_is_called_by_its_name(promise, name):
    layer_class = type(name, (Sound,), BROKEN[promise][name])
    keras.saving.register_keras_serializable(
        package="test_harness", name="other" if name == "HasAnotherName" else name
    )(layer_class)
    with pytest.raises(AssertionError, match=f"^{promise}: "):
        check(layer_class)
