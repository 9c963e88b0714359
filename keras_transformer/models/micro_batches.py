"""A training step in parts: in turn for less memory, at the same time for speed on a CPU."""

import itertools
from typing import Any

import keras

from keras_transformer.layers.dtypes import at_least_float32

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf


def num_replicas(model: keras.Model | None = None) -> int:
    """Returns the number of replicas of `model`, or of the current scope if there is no model."""
    if keras.backend.backend() != "tensorflow":
        return 1
    strategy = getattr(model, "distribute_strategy", None) or tf.distribute.get_strategy()
    return strategy.num_replicas_in_sync


class MicroBatchModel(keras.Model):
    """A `keras.Model` whose `fit` can sum the gradient over parts of each batch.

    Set the attributes before `fit`; the loss must be a sum over the whole batch. Keras' own
    `gradient_accumulation_steps` takes the mean over unequal parts, and fails on several replicas.

    Attributes:
        micro_batches: number of parts that are computed in turn, in less memory.
        streams: number of parts of each micro-batch that are computed at the same time. With one
            thread per operation on a CPU, two streams train small models faster than two threads.
    """

    micro_batches = 1
    streams = 1

    def train_step(self, *args: Any, **kwargs: Any) -> dict:
        if self.micro_batches == self.streams == 1:
            return super().train_step(*args, **kwargs)
        if keras.backend.backend() != "tensorflow":
            raise ValueError(
                "Steps in several parts need the TensorFlow backend. Received: "
                f"micro_batches={self.micro_batches}, streams={self.streams}, "
                f"backend={keras.backend.backend()!r}"
            )
        return self._step_in_parts(*args, **kwargs)

    def _step_in_parts(self, data):
        weights = self.trainable_weights
        batch = keras.utils.unpack_x_y_sample_weight(data)
        if self.micro_batches == 1:
            loss, gradients = self._gradients_in_streams(batch, weights)
        else:
            loss, gradients = self._gradients_in_turn(batch, weights)
        self.optimizer.apply(gradients, weights)
        self._track_loss(loss, tf.shape(tf.nest.flatten(data)[0])[0])
        return self.get_metrics_result()

    def _gradients_in_turn(self, batch, weights):
        """Returns the loss of a batch and its gradients, summed over the micro-batches."""
        parts = tf.nest.map_structure(self._cut, batch)
        number = self.micro_batches

        def add_part(index, total, gradients):
            part = tf.nest.map_structure(lambda cut: None if cut is None else cut[index], parts)
            loss, part_gradients = self._gradients_in_streams(part, weights)
            sums = [s + tf.cast(p, s.dtype) for s, p in zip(gradients, part_gradients, strict=True)]
            return index + 1, total + tf.cast(loss, total.dtype), sums

        loss = tf.zeros((), at_least_float32(self.compute_dtype))
        gradients = [tf.zeros(weight.shape, weight.dtype) for weight in weights]
        # One at a time, because parallel parts would need the memory of the whole batch.
        _, loss, gradients = tf.while_loop(
            lambda index, *_: index < number,
            add_part,
            (0, loss, gradients),
            parallel_iterations=1,
            maximum_iterations=number,
        )
        return loss, gradients

    def _gradients_in_streams(self, batch, weights):
        """Returns the loss of a batch and its gradients, summed over the streams."""
        rows = tf.shape(tf.nest.flatten(batch)[0])[0]
        limits = [rows * number // self.streams for number in range(self.streams + 1)]
        results = []
        for start, end in itertools.pairwise(limits):
            # TensorFlow runs the parts in parallel, because none depends on another.
            results.append(self._part_gradients(_some_rows(batch, start, end), weights))
        losses, gradients = zip(*results, strict=True)
        return sum(losses), [tf.add_n(parts) for parts in zip(*gradients, strict=True)]

    def _cut(self, array):
        """Returns `[rows, ...]` as `[micro_batches, rows / micro_batches, ...]`."""
        if array is None:
            return None
        number = self.micro_batches
        rows = array.shape[0] or tf.shape(array)[0]
        message = f"The rows of a batch, on each replica, must be a multiple of {number}"
        check = tf.debugging.assert_equal(rows % number, 0, message)
        with tf.control_dependencies([check] if check is not None else []):
            shape = tf.concat([[number, rows // number], tf.shape(array)[1:]], axis=0)
        return tf.ensure_shape(tf.reshape(array, shape), [number, None, *array.shape[1:]])

    def _part_gradients(self, part, weights):
        """Returns the loss of a part, and its gradients, dense."""
        inputs, labels, sample_weight = part
        with tf.GradientTape() as tape:
            outputs = self(inputs, training=True)
            loss = self.compute_loss(inputs, labels, outputs, sample_weight, training=True)
            # The regularization loss counts once in a step, not once in each part.
            loss -= sum(self.losses, 0.0) * (1 - 1 / (self.micro_batches * self.streams))
            scaled = self.optimizer.scale_loss(loss)
        # `unconnected_gradients="zero"` fails for variables of Keras.
        variables = [weight.value for weight in weights]
        gradients = tape.gradient(scaled, variables, unconnected_gradients="zero")
        self.compute_metrics(inputs, labels, outputs, sample_weight)
        return loss, [tf.convert_to_tensor(gradient) for gradient in gradients]

    def _track_loss(self, loss, rows):
        # Keras takes the mean over the replicas, but the loss is a sum.
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss * num_replicas(), sample_weight=rows)


def _some_rows(batch, start, end):
    return tf.nest.map_structure(lambda array: None if array is None else array[start:end], batch)
