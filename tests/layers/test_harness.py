"""The harness catches every broken promise: toy layers that each break one."""

import warnings

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers.checks import check_positive_number
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


@register
class ForgetsAKey(Sound):
    def get_config(self):
        return keras.layers.Layer.get_config(self)


@register
class ForgetsAValue(Sound):
    def get_config(self):
        return {**super().get_config(), "factor": 0.1}


@register
class AddsToItsConfig(Sound):
    def get_config(self):
        return {**super().get_config(), "factor": self.factor, "name": f"{self.name}_1"}


@keras.saving.register_keras_serializable(package="test_harness", name="other")
class HasAnotherName(Sound):
    pass


@register
class AcceptsAnything(Sound):
    def __init__(self, factor=0.1, **kwargs):
        super().__init__(**kwargs)
        self.factor = factor


@register
class DoesNotSayWhatIsAllowed(Sound):
    def __init__(self, factor=0.1, **kwargs):
        super().__init__(**kwargs)
        if factor == 0 or isinstance(factor, str):
            raise ValueError(f"Wrong. Received: factor={factor!r}")
        self.factor = factor


@register
class DoesNotSayWhatItReceived(Sound):
    def __init__(self, factor=0.1, **kwargs):
        super().__init__(**kwargs)
        if factor == 0 or isinstance(factor, str):
            raise ValueError("`factor` must be a number greater than 0.")
        self.factor = factor


@register
class HasAnArgumentThatNothingChecks(Sound):
    def __init__(self, factor=0.1, scale=1, **kwargs):
        super().__init__(factor, **kwargs)
        self.scale_of_all = self.scale = scale

    def get_config(self):
        return {**super().get_config(), "scale": self.scale_of_all}


@register
class HasAWeightTooMany(Sound):
    def build(self, inputs_shape):
        self.spare = self.add_weight(name="spare", shape=(1,), initializer="zeros")
        super().build(inputs_shape)

    def call(self, inputs):
        return super().call(inputs) + self.spare - self.spare


@register
class HasARandomState(Sound):
    def build(self, inputs_shape):
        self.seed_generator = keras.random.SeedGenerator(1)
        super().build(inputs_shape)


@register
class ChangesTheShape(Sound):
    def call(self, inputs):
        return super().call(inputs)[:, :1]


@register
class ComputesInIntegers(Sound):
    def call(self, inputs):
        scale = ops.cast(self.scale, inputs.dtype)
        return ops.cast(inputs * scale, self.compute_dtype) * self.factor + self.bias


@register
class PutsAPositionInPlaceOfNone(Sound):
    def call(self, inputs):
        outputs = super().call(inputs)
        return ops.pad(outputs, [(0, 0), (0, 1), (0, 0)]) if outputs.shape[1] == 0 else outputs


@register
class DeclaresAnotherShape(Sound):
    def compute_output_shape(self, inputs_shape):
        return (*inputs_shape[:-1], 7)


@register
class DeclaresAnotherLength(Sound):
    def compute_output_shape(self, inputs_shape):
        return (inputs_shape[0], 1, inputs_shape[-1])


@register
class IgnoresTheComputeDtype(Sound):
    def call(self, inputs):
        return ops.cast(super().call(inputs), "float32")


@register
class DeclaresAnotherDtype(Sound):
    def compute_output_spec(self, inputs):
        return keras.KerasTensor(inputs.shape, dtype="float16")


@register
class HasHalfPrecisionWeights(Sound):
    def build(self, inputs_shape):
        shape, dtype = inputs_shape[-1:], self.compute_dtype
        self.scale = self.add_weight(name="scale", shape=shape, initializer="ones")
        self.bias = self.add_weight(name="bias", shape=shape, initializer="zeros", dtype=dtype)
        self.built = True


@register
class HasAFloat32Constant(Sound):
    def call(self, inputs):
        return inputs * self.scale * float(np.float32(self.factor)) + self.bias


@register
class ComputesInHalfPrecision(Sound):
    def call(self, inputs):
        return ops.cast(ops.cast(super().call(inputs), "bfloat16"), self.compute_dtype)


@register
class GivesNan(Sound):
    def call(self, inputs):
        return super().call(inputs) + 0 * ops.log(inputs)


@register
class HasNanGradients(Sound):
    def call(self, inputs):
        return super().call(inputs) + ops.sqrt(ops.abs(self.scale - self.scale))


@register
class IsRandomAtInference(Sound):
    def call(self, inputs):
        noise = keras.random.normal(ops.shape(inputs), dtype=inputs.dtype)
        return super().call(inputs) + 1e-6 * noise


@register
class HasAPartThatIsNotBuilt(Sound):
    def build(self, inputs_shape):
        self.part = keras.layers.Dense(inputs_shape[-1])
        super().build(inputs_shape)


@register
class ForgetsItsWeights(Sound):
    def save_own_variables(self, store):
        pass

    def load_own_variables(self, store):
        pass


@register
class LosesAGradient(Sound):
    def call(self, inputs):
        return inputs * self.scale * self.factor + ops.stop_gradient(self.bias)


@register
class IgnoresItsBias(Sound):
    def call(self, inputs):
        return inputs * self.scale * self.factor


@register
class ChangesWhenCompiled(Sound):
    def call(self, inputs):
        outputs = super().call(inputs)
        return outputs if hasattr(inputs, "numpy") else 2 * outputs


@register
class _BeginsWithAnUnderscore(Sound):
    """Keras names its variables after it, and TensorFlow refuses such names in an export."""


@register
class Warns(Sound):
    def call(self, inputs):
        warnings.warn("something is deprecated", DeprecationWarning, stacklevel=2)
        return super().call(inputs)


def tensorflow_only(layer_class, reason):
    return pytest.param(layer_class, marks=pytest.mark.tensorflow_only(reason))


BROKEN = {
    "config": [ForgetsAKey, ForgetsAValue, AddsToItsConfig, HasAnotherName],
    "errors": [
        AcceptsAnything,
        DoesNotSayWhatIsAllowed,
        DoesNotSayWhatItReceived,
        HasAnArgumentThatNothingChecks,
    ],
    "shape": [ChangesTheShape, DeclaresAnotherShape, DeclaresAnotherLength],
    "dtype": [IgnoresTheComputeDtype, DeclaresAnotherDtype, HasHalfPrecisionWeights],
    "finite": [GivesNan, HasNanGradients],
    "precision": [
        tensorflow_only(HasAFloat32Constant, "elsewhere Keras computes in float32 at most"),
        ComputesInHalfPrecision,
        IgnoresItsBias,
    ],
    "weights": [HasAWeightTooMany],
    "seeds": [HasARandomState],
    "inference": [IsRandomAtInference],
    "integers": [ComputesInIntegers],
    "no positions": [PutsAPositionInPlaceOfNone],
    "quantize": [HasAPartThatIsNotBuilt],
    "reload": [ForgetsItsWeights],
    "training": [LosesAGradient],
    "compiled": [tensorflow_only(ChangesWhenCompiled, "its eager tensors are told by `numpy`")],
    "export": [tensorflow_only(_BeginsWithAnUnderscore, "Keras exports there")],
    "warnings": [Warns],
}


def check(layer_class):
    def make(factor=0.3, **kwargs):
        return layer_class(factor, **kwargs)

    def expected(layer, inputs):
        return inputs["inputs"] * array(layer.scale) * layer.factor + array(layer.bias)

    check_layer(make, INPUTS, 2, expected, BAD_ARGUMENTS, package="test_harness")


def test_a_sound_layer_passes():
    check(Sound)


@pytest.mark.parametrize(
    "layer_class,promise",
    [
        pytest.param(*getattr(one, "values", [one]), promise, marks=getattr(one, "marks", ()))
        for promise, classes in BROKEN.items()
        for one in classes
    ],
)
def test_a_broken_promise_is_called_by_its_name(layer_class, promise):
    with pytest.raises(AssertionError, match=f"^{promise}: "):
        check(layer_class)
