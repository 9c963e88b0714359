"""Whole searches as compiled functions, on every backend."""

import functools
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import keras

from keras_transformer.layers.effective_weights import all_parts


def compile_search(
    function: Callable,
    variables: Sequence[keras.Variable] = (),
    sizes: Sequence[str] = (),
    ranks: Mapping[str, int] | None = None,
) -> Callable:
    """Compiles a search function, such as one that encodes and then calls `search(step, ...)`.

    On TensorFlow it becomes one `tf.function` of dynamic shapes; on JAX one `jax.jit`, which
    compiles for each shape; on torch it is called as it is, without gradients. Random states must
    not change inside: no dropout.

    Args:
        function: Function of tensors, and of the ints named in `sizes`, to a nest of tensors.
        variables: The `keras.Variable`s that the function reads, such as `model.variables`. (JAX
            compiles a variable that is missing here into the program as a constant.)
        sizes: Names of int arguments that determine shapes, such as `("max_length",)`; pass them
            by keyword. A new value compiles again on JAX only.
        ranks: Number of axes of each argument, all of them int32 and passed by keyword. With it,
            TensorFlow traces once for all shapes; without it, again for the first new shapes.

    Returns:
        A function with the arguments and the results of `function`.

    Example:

    >>> zeros = keras_transformer.decoding.compile_search(lambda n: ops.zeros((n,)), sizes=("n",))
    >>> ops.convert_to_numpy(zeros(n=2)).tolist()
    [0.0, 0.0]
    """
    backend = keras.config.backend()
    if backend == "torch":
        import torch

        return torch.no_grad()(function)
    if backend == "jax":
        return _compile_jax(function, list(variables), sizes)
    import tensorflow as tf

    # Variables are captured by reference: nothing to hand over.
    if ranks is not None:
        specs = {name: tf.TensorSpec([None] * rank, tf.int32, name) for name, rank in ranks.items()}
        return tf.function(function, autograph=False).get_concrete_function(**specs)
    compiled = tf.function(function, reduce_retracing=True, autograph=False)

    @functools.wraps(function)
    def call(*args, **kwargs):
        for name in sizes:
            if isinstance(kwargs.get(name), int):
                kwargs[name] = tf.constant(kwargs[name], dtype=tf.int32)
        return compiled(*args, **kwargs)

    return call


class CompiledFunctions:
    """Functions of one model that are compiled once, and again when its variables are others.

    `quantize` and `enable_lora` replace and add variables, which a compiled function would not see.
    Several threads may call `get` at the same time.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._changeable: list | None = None  # The layers that may get other variables.
        self._last_state: list | None = None
        self._compiled: dict[Hashable, Callable] = {}
        self._compiling = threading.Lock()

    def get(
        self,
        key: Hashable,
        function: Callable,
        sizes: Sequence[str] = (),
        ranks: Mapping[str, int] | None = None,
    ) -> Callable:
        """Returns `compile_search(function, model.variables, sizes, ranks)`, stored under a key."""
        with self._compiling:
            # The variables themselves take Keras much longer to list, at every call.
            if self._changeable is None:
                models = getattr(self._model, "models", [self._model])  # Those of an `Ensemble`.
                parts = [part for model in models for part in all_parts(model)]
                self._changeable = [part for part in parts if hasattr(part, "lora_enabled")]
            state = [(part.dtype_policy, part.lora_enabled) for part in self._changeable]
            if state != self._last_state:
                self._compiled.clear()
                self._last_state = state
            if key not in self._compiled:
                variables = self._model.variables
                self._compiled[key] = compile_search(function, variables, sizes, ranks)
            return self._compiled[key]


def _compile_jax(function, variables, sizes):
    import jax

    def stateless(values, args, **kwargs):
        mapping = list(zip(variables, values, strict=True))
        with keras.StatelessScope(state_mapping=mapping):
            return function(*args, **kwargs)

    compiled = jax.jit(stateless, static_argnames=tuple(sizes))

    @functools.wraps(function)
    def call(*args, **kwargs):
        values = [variable.value for variable in variables]
        if all(value.is_fully_replicated for value in values):
            # Each process computes by itself, on a device of its own.
            values = [value.addressable_data(0) for value in values]
        return compiled(values, args, **kwargs)

    return call
