"""Training steps in parts, computed in turn for less memory or in parallel for speed on a CPU."""

import functools
import itertools
from typing import Any

import keras
from keras import ops

from keras_transformer.layers.tensors import at_least_float32, check_shape

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf


def token_mean_weights(labels: Any, dtype: str | None = None) -> Any:
    """Returns weights under which the sum of losses is the mean over tokens that are not padding.

    The tokens are those of a replica; the sum over the replicas is the mean of their means.
    """
    is_token = ops.cast(ops.not_equal(labels, 0), dtype or keras.config.floatx())
    return is_token / (num_replicas() * ops.maximum(ops.sum(is_token), 1))


def num_replicas(model: keras.Model | None = None) -> int:
    """Returns the number of replicas of `model`, or of the current scope if there is no model."""
    if keras.backend.backend() != "tensorflow":
        return 1
    strategy = getattr(model, "distribute_strategy", None) or tf.distribute.get_strategy()
    return strategy.num_replicas_in_sync


class MicroBatchModel(keras.Model):
    """A `keras.Model` whose `fit` can sum the gradient over parts of each batch.

    It also refuses inputs that are not ids, and compiles its functions again when its variables
    were replaced.

    Set the attributes before `fit`. The loss must be a sum over the whole batch: Keras' own
    `gradient_accumulation_steps` takes the mean over unequal parts, and fails on several replicas.

    Attributes:
        micro_batches: Number of parts that are computed in turn, in less memory.
        streams: Number of parts of each micro-batch that are computed at the same time. With one
            thread per operation on a CPU, two streams train small models faster than two threads.
    """

    micro_batches = 1
    streams = 1

    def make_train_function(self, force: bool = False) -> Any:
        return super().make_train_function(force or self._has_new_variables("train"))

    def make_test_function(self, force: bool = False) -> Any:
        return super().make_test_function(force or self._has_new_variables("test"))

    def make_predict_function(self, force: bool = False) -> Any:
        return super().make_predict_function(force or self._has_new_variables("predict"))

    def get_compile_config(self) -> dict:
        config = super().get_compile_config()
        if config and keras.backend.backend() == "jax":
            # JAX always compiles with XLA; on other backends the file must not ask for it.
            config = {**config, "jit_compile": False}
        return config

    def compile_from_config(self, config: dict) -> None:
        if keras.backend.backend() == "jax":
            config = {**config, "jit_compile": not config.get("run_eagerly")}
        super().compile_from_config(config)

    def _has_new_variables(self, name):
        """Returns whether the variables are others than those of the last call with this name."""
        # Keras compiles a function for each method once. Quantization and LoRA of a part replace
        # and add variables, which the function would not see.
        name, current = f"_variables_to_{name}", tuple(map(id, self.variables))
        last = getattr(self, name, current)
        setattr(self, name, current)
        return current != last

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        self._check_ids(inputs)
        return super().__call__(inputs, *args, **kwargs)

    def stateless_call(self, *args: Any, **kwargs: Any) -> Any:  # In place of a call on JAX.
        self._check_ids(args[2] if len(args) > 2 else kwargs.get("inputs"))
        return super().stateless_call(*args, **kwargs)

    def _check_ids(self, inputs):
        """Raises `ValueError` unless the inputs are ids; Keras would cast floats to int32."""
        known = self.input
        if isinstance(inputs, dict) and isinstance(known, dict) and inputs.keys() - known.keys():
            # Keras would take the first values in the order of all names.
            rule = f"The inputs of this model are {sorted(known)}, without others"
            if "source_segments" in inputs:
                rule += "; packed rows are for LossModel(packed=True)"
            raise ValueError(f"{rule}. Received: {sorted(inputs)}")
        for name, ids in (inputs if isinstance(inputs, dict) else {"inputs": inputs}).items():
            check_shape(name, ids, "[batch, length]")
            dtype = keras.backend.standardize_dtype(getattr(ids, "dtype", "int32"))
            # With several replicas, Keras builds the model for the mean of the replicas' ids.
            if "int" not in dtype and num_replicas(self) == 1:
                rule = f"`{name}` must have an integer dtype, because it holds ids"
                raise ValueError(f"{rule}. Received: {name} of dtype {dtype}")

    def train_step(self, data: Any, *args: Any) -> Any:
        if self.micro_batches == self.streams == 1:
            return super().train_step(data, *args)
        return self._step_in_parts(data)

    def _step_in_parts(self, data):
        if keras.backend.backend() != "tensorflow":
            raise ValueError(
                "Steps in several parts need the TensorFlow backend. Received: "
                f"micro_batches={self.micro_batches}, streams={self.streams}, "
                f"backend={keras.backend.backend()!r}"
            )
        inputs, labels, weights = keras.utils.unpack_x_y_sample_weight(data)
        if weights is None:  # The parts have different numbers of tokens.
            weights = token_mean_weights(labels)
        is_whole = self.micro_batches == 1
        compute = self._gradients_in_streams if is_whole else self._gradients_in_turn
        loss, gradients = compute((inputs, labels, weights))
        self.optimizer.apply(gradients, self.trainable_weights)
        # Keras takes the mean over the replicas, but the loss is a sum.
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss * num_replicas(), sample_weight=_batch_size(data))
        return self.get_metrics_result()

    def _gradients_in_turn(self, batch):
        """Returns the loss of a batch and its gradients, summed over the micro-batches."""
        parts, number = tf.nest.map_structure(self._cut, batch), self.micro_batches

        def add_part(index, total, sums):
            part = tf.nest.map_structure(lambda cut: None if cut is None else cut[index], parts)
            loss, gradients = self._gradients_in_streams(part)
            return index + 1, total + tf.cast(loss, total.dtype), self._sum([sums, gradients])

        loss = tf.zeros((), at_least_float32(self.compute_dtype))
        sums = [tf.zeros(weight.shape, weight.dtype) for weight in self.trainable_weights]
        # One at a time, because parallel parts would need the memory of the whole batch.
        _, loss, sums = tf.while_loop(
            lambda index, *_: index < number,
            add_part,
            (0, loss, sums),
            parallel_iterations=1,
            maximum_iterations=number,
        )
        return loss, sums

    def _cut(self, array):
        """Returns `[batch, ...]` as `[micro_batches, batch / micro_batches, ...]`."""
        if array is None:
            return None
        number = self.micro_batches
        size = array.shape[0] or tf.shape(array)[0]
        message = f"The size of a batch, on each replica, must be a multiple of {number}"
        check = tf.debugging.assert_equal(size % number, 0, message)
        with tf.control_dependencies([check] if check is not None else []):
            shape = tf.concat([[number, size // number], tf.shape(array)[1:]], axis=0)
        return tf.ensure_shape(tf.reshape(array, shape), [number, None, *array.shape[1:]])

    def _gradients_in_streams(self, batch):
        """Returns the loss of a batch and its gradients, summed over the streams."""
        size = _batch_size(batch)
        limits = [size * number // self.streams for number in range(self.streams + 1)]

        def gradients_of_slice(start, end):
            part = tf.nest.map_structure(lambda a: None if a is None else a[start:end], batch)
            return self._part_gradients(*part)

        # TensorFlow computes the parts in parallel, because none depends on another.
        parts = itertools.starmap(gradients_of_slice, itertools.pairwise(limits))
        losses, gradients = zip(*parts, strict=True)
        return sum(losses), self._sum(gradients)

    def _sum(self, parts):
        """Returns the gradients of several parts of a batch as one.

        The "gradient" of a variable of float8 is its next value: a scale that all parts share, or
        the largest numbers so far.
        """
        sums = []
        for weight, *gradients in zip(self.trainable_weights, *parts, strict=True):
            is_value = getattr(weight, "overwrite_with_gradient", False)
            sums.append(functools.reduce(tf.maximum if is_value else tf.add, gradients))
        return sums

    def _part_gradients(self, inputs, labels, sample_weight):
        """Returns the loss of a part, and its gradients, dense."""
        with tf.GradientTape() as tape:
            outputs = self(inputs, training=True)
            loss = self.compute_loss(inputs, labels, outputs, sample_weight, training=True)
            # `compute_loss` adds the share of this replica in the regularization loss, which counts
            # once in a step, not once in each part.
            share = sum(self.losses, 0.0) / num_replicas()
            loss -= share * (1 - 1 / (self.micro_batches * self.streams))
            scaled = self.optimizer.scale_loss(loss)
        # `unconnected_gradients="zero"` fails for variables of Keras.
        variables = [weight.value for weight in self.trainable_weights]
        gradients = tape.gradient(scaled, variables, unconnected_gradients="zero")
        self.compute_metrics(inputs, labels, outputs, sample_weight)
        return loss, [
            tf.cast(tf.convert_to_tensor(gradient), weight.dtype)
            for gradient, weight in zip(gradients, self.trainable_weights, strict=True)
        ]


def _batch_size(batch):
    return tf.shape(tf.nest.flatten(batch)[0])[0]
