"""A whole search as one compiled function, on every backend."""

import functools
from collections.abc import Callable, Sequence

import keras


def compile_search(
    function: Callable, variables: Sequence[keras.Variable] = (), sizes: Sequence[str] = ()
) -> Callable:
    """Compiles a search function, such as one that encodes and then calls `search(step, ...)`.

    On TensorFlow it becomes one `tf.function`, which stops retracing for new batch sizes and
    lengths after the second shape; on JAX one `jax.jit`, which compiles for each shape; on torch
    it is called as it is, without gradients. Random states must not change inside: no dropout.

    Args:
        function: Function of tensors, and of the ints named in `sizes`, to a nest of tensors.
        variables: The `keras.Variable`s that the function reads, such as `model.variables`. Their
            values are read at each call, so that further training has an effect. (JAX compiles a
            variable that is missing here into the program as a constant.)
        sizes: Names of int arguments that determine shapes, such as `("max_length",)`; pass them
            by keyword. On TensorFlow they become scalar tensors, so that a new value does not
            retrace; on JAX each new value compiles again.

    Returns:
        A function with the arguments and the results of `function`.

    Example:

    >>> from keras_transformer.decoding import compile_search
    >>> double = compile_search(lambda x, length: ops.zeros((length,)) + 2 * x, sizes=("length",))
    >>> ops.convert_to_numpy(double(ops.array([1.0]), length=2)).tolist()
    [2.0, 2.0]
    """
    backend = keras.config.backend()
    if backend == "torch":
        import torch

        return torch.no_grad()(function)
    if backend == "jax":
        return _compile_jax(function, list(variables), sizes)
    import tensorflow as tf

    # Variables are captured by reference: nothing to hand over.
    compiled = tf.function(function, reduce_retracing=True, autograph=False)

    @functools.wraps(function)
    def call(*args, **kwargs):
        for name in sizes:
            if isinstance(kwargs.get(name), int):
                kwargs[name] = tf.constant(kwargs[name], dtype=tf.int32)
        return compiled(*args, **kwargs)

    return call


def _compile_jax(function, variables, sizes):
    import jax

    def stateless(values, args, **kwargs):
        mapping = list(zip(variables, values, strict=True))
        with keras.StatelessScope(state_mapping=mapping):
            return function(*args, **kwargs)

    compiled = jax.jit(stateless, static_argnames=tuple(sizes))

    @functools.wraps(function)
    def call(*args, **kwargs):
        return compiled([variable.value for variable in variables], args, **kwargs)

    return call
