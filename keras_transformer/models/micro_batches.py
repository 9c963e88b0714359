"""A training step in parts, for large batches in little memory."""

from typing import Any

import keras

from keras_transformer.layers.dtypes import at_least_float32

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf


class MicroBatchModel(keras.Model):
    """A `keras.Model` whose `fit` can sum the gradient over parts of each batch.

    Set `micro_batches` before `compile`; the loss must be a sum over the whole batch. Keras' own
    `gradient_accumulation_steps` takes the mean over unequal parts, and fails on several replicas.
    """

    micro_batches = 1

    def train_step(self, *args: Any, **kwargs: Any) -> dict:
        if self.micro_batches == 1:
            return super().train_step(*args, **kwargs)
        if keras.backend.backend() != "tensorflow":
            raise ValueError(
                "Steps in several parts need the TensorFlow backend. Received: "
                f"micro_batches={self.micro_batches}, backend={keras.backend.backend()!r}"
            )
        return self._step_in_parts(*args, **kwargs)

    def _step_in_parts(self, data):
        weights = self.trainable_weights
        parts = tf.nest.map_structure(self._cut, keras.utils.unpack_x_y_sample_weight(data))
        number = self.micro_batches

        def add_part(index, total, gradients):
            part = tf.nest.map_structure(lambda cut: None if cut is None else cut[index], parts)
            loss, part_gradients = self._part_gradients(part, weights)
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
        self.optimizer.apply(gradients, weights)
        self._track_loss(loss, tf.shape(tf.nest.flatten(data)[0])[0])
        return self.get_metrics_result()

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
            # Regularisers belong to the step, not to each of its parts.
            loss -= sum(self.losses, 0.0) * (1 - 1 / self.micro_batches)
            scaled = self.optimizer.scale_loss(loss)
        # `unconnected_gradients="zero"` fails for variables of Keras.
        variables = [weight.value for weight in weights]
        gradients = tape.gradient(scaled, variables, unconnected_gradients="zero")
        self.compute_metrics(inputs, labels, outputs, sample_weight)
        return loss, [tf.convert_to_tensor(gradient) for gradient in gradients]

    def _track_loss(self, loss, rows):
        # The sum over all replicas, of which Keras takes the mean.
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss * replicas, sample_weight=rows)
