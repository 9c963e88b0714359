"""Base of layers whose arguments are checked, kept and saved by their names."""

from collections.abc import Callable
from typing import Any, Self

import keras

from keras_transformer.layers.checks import (
    check_boolean,
    check_choice,
    check_positive_integer,
    check_positive_number,
    check_rate,
    check_seed,
)
from keras_transformer.layers.seeds import derive_initializer


def _or_none(check):
    return lambda name, value: None if value is None else check(name, value)


# Arguments of the same name mean the same in every layer.
_CHECKS = {
    **dict.fromkeys(("num_heads", "intermediate_dim"), check_positive_integer),
    **dict.fromkeys(("max_length", "max_distance"), check_positive_integer),
    **dict.fromkeys(("vocab_size", "d_model"), check_positive_integer),
    **dict.fromkeys(("key_dim", "value_dim", "sliding_window"), _or_none(check_positive_integer)),
    **dict.fromkeys(("rate", "dropout", "attention_dropout", "activation_dropout"), check_rate),
    **dict.fromkeys(("use_bias", "mask_zero", "remat"), check_boolean),
    **dict.fromkeys(("final_norm", "flash_attention"), _or_none(check_boolean)),
    **dict.fromkeys(("epsilon", "max_wavelength"), check_positive_number),
    "scale": _or_none(check_positive_number),
    "norm": lambda name, value: check_choice(name, value, ("post", "pre")),
    "seed": lambda name, value: check_seed(value),
}
# Endings of the names of other arguments, and the Keras module that converts their values.
_FAMILIES = {
    "activation": keras.activations,
    "_initializer": keras.initializers,
    "_regularizer": keras.regularizers,
}


class ConfiguredLayer(keras.layers.Layer):
    """Base of layers that keep their arguments as attributes and save them in their config.

    The outputs have the shape of the inputs, unless a subclass overrides `compute_output_shape`.
    """

    def _keep(self, **arguments):
        for name, value in arguments.items():
            family = _keras_family(name)
            if family is not None:
                value = family.get(value)
            elif name in _CHECKS:
                _CHECKS[name](name, value)
            setattr(self, name, value)
        self._kept = (*getattr(self, "_kept", ()), *arguments)
        self.supports_masking = True

    def get_config(self) -> dict:
        config = super().get_config()
        for name in self._kept:
            value, family = getattr(self, name), _keras_family(name)
            if isinstance(value, keras.layers.Layer):
                value = keras.saving.serialize_keras_object(value)
            config[name] = value if family is None or value is None else family.serialize(value)
        return config

    @classmethod
    def from_config(cls, config: dict) -> Self:
        layers = {
            name: keras.saving.deserialize_keras_object(config[name])
            for name in ("attention", "position")
            if config.get(name) is not None
        }
        return super().from_config({**config, **layers})

    def compute_output_shape(self, inputs_shape: tuple) -> tuple:
        return inputs_shape


class TracedLayer(ConfiguredLayer):
    """Base of layers whose output structure depends on the arguments, so that Keras traces them."""

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        return keras.Operation.compute_output_spec(self, *args, **kwargs)


class KernelLayer(ConfiguredLayer):
    """Base of layers with matrices and biases, each of which draws its own initial values."""

    def __init__(
        self,
        kernel_initializer: str | Callable = "glorot_uniform",
        bias_initializer: str | Callable = "zeros",
        kernel_regularizer: str | Callable | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._keep(
            kernel_initializer=kernel_initializer,
            bias_initializer=bias_initializer,
            kernel_regularizer=kernel_regularizer,
        )

    def _add_kernel(self, name, input_dim, output_dim):
        return self.add_weight(
            name=name,
            shape=(input_dim, output_dim),
            initializer=derive_initializer(self.kernel_initializer, name),
            regularizer=self.kernel_regularizer,
        )

    def _add_bias(self, name, size):
        if not self.use_bias:
            return None
        initializer = derive_initializer(self.bias_initializer, name)
        return self.add_weight(name=name, shape=(size,), initializer=initializer)


def _keras_family(name):
    return next((family for end, family in _FAMILIES.items() if name.endswith(end)), None)
