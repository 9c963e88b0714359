"""What the encoder and decoder stacks share: position, blocks, dropout and final norm."""

import keras

from keras_transformer.layers.checks import check_rate
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.sinusoidal_position_encoding import SinusoidalPositionEncoding


class Stack(keras.layers.Layer):
    """Base of `Encoder` and `Decoder`; their docstrings describe the arguments."""

    def __init__(
        self,
        blocks,
        position="sinusoidal",
        dropout=0.1,
        final_norm=None,
        epsilon=1e-6,
        seed=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_rate("dropout", dropout)
        self.blocks = list(blocks)
        if not self.blocks:
            raise ValueError(f"`blocks` must hold at least one layer. Received: blocks={blocks!r}")
        self.position = self._make_position(position)
        self.dropout = dropout
        self.final_norm = final_norm
        self.epsilon = epsilon
        self.seed = seed
        self.supports_masking = True
        self.dropout_layer = Dropout(dropout, seed=seed, dtype=self.dtype_policy, name="dropout")

    def _make_position(self, position):
        if position == "sinusoidal":
            return SinusoidalPositionEncoding(dtype=self.dtype_policy, name="position")
        if position is None or isinstance(position, keras.layers.Layer):
            return position
        raise ValueError(
            "`position` must be 'sinusoidal', a layer that adds positions to its inputs, or None. "
            f"Received: position={position!r}"
        )

    def _build_ends(self, inputs_shape):
        """Build what stands before and behind the blocks."""
        self._build_once(self.position, inputs_shape)
        # Pre-norm leaves the last sum without a norm; post-norm ends in one already.
        needs_norm = getattr(self.blocks[-1], "norm", None) == "pre"
        self.norm_layer = None
        if needs_norm if self.final_norm is None else self.final_norm:
            self.norm_layer = keras.layers.LayerNormalization(
                epsilon=self.epsilon, dtype=self.dtype_policy, name="final_norm"
            )
            self.norm_layer.build(inputs_shape)

    def _build_once(self, layer, *shapes):
        # A layer that was built before, elsewhere or from a file, keeps its weights.
        if layer is not None and not layer.built:
            layer.build(*shapes)

    def _begin(self, inputs, positions, training):
        if self.position is not None:
            inputs = self.position(inputs, positions=positions)
        return self.dropout_layer(inputs, training=training)

    def _end(self, outputs):
        return outputs if self.norm_layer is None else self.norm_layer(outputs)

    def compute_output_spec(self, *args, **kwargs):
        # Traced, since the form of the output depends on the arguments.
        return keras.Operation.compute_output_spec(self, *args, **kwargs)

    def get_config(self):
        return {
            **super().get_config(),
            "blocks": [keras.saving.serialize_keras_object(block) for block in self.blocks],
            "position": keras.saving.serialize_keras_object(self.position),
            "dropout": self.dropout,
            "final_norm": self.final_norm,
            "epsilon": self.epsilon,
            "seed": self.seed,
        }

    @classmethod
    def from_config(cls, config):
        config = dict(config)
        config["blocks"] = [
            keras.saving.deserialize_keras_object(block) for block in config["blocks"]
        ]
        config["position"] = keras.saving.deserialize_keras_object(config["position"])
        return cls(**config)
