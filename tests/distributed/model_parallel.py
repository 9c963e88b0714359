"""Runs in a process of its own, on two devices of JAX; prints its measurements as JSON."""

import json

import keras
import numpy as np

from keras_transformer.models import Transformer, TransformerConfig
from keras_transformer.training import LabelSmoothedCrossEntropy, model_parallel_layout


def train():
    """Three steps: losses, weights, and the model."""
    keras.utils.set_random_seed(0)
    config = TransformerConfig(
        vocab_size=20,
        num_encoder_layers=1,
        num_decoder_layers=1,
        d_model=16,
        intermediate_dim=32,
        num_heads=2,
        use_bias=True,
    )
    model = Transformer(config)
    # Adam divides by the size of tiny gradients: 1e-3 keeps rounding from becoming a sign.
    optimizer = keras.optimizers.Adam(1e-2, epsilon=1e-3)
    model.compile(optimizer, LabelSmoothedCrossEntropy(0.1))
    ids = np.random.default_rng(0).integers(4, 20, (4, 6)).astype("int32")
    weights = np.full((4, 6), 1 / 24, "float32")
    inputs = {"source": ids, "target": ids}
    losses = [float(model.train_on_batch(inputs, ids, weights)) for _ in range(3)]
    return losses, model.get_weights(), model


def main():
    losses, weights, _ = train()
    mesh = keras.distribution.DeviceMesh(
        (1, 2), ["batch", "model"], keras.distribution.list_devices()
    )
    keras.distribution.set_distribution(
        keras.distribution.ModelParallel(
            layout_map=model_parallel_layout(mesh), batch_dim_name="batch"
        )
    )
    parallel_losses, parallel_weights, model = train()
    variables = [*model.trainable_variables, *model.optimizer.variables]
    shares = {
        variable.path: variable.value.addressable_shards[0].data.size / variable.value.size
        for variable in variables
    }
    pairs = zip(weights, parallel_weights, strict=True)
    print(
        json.dumps(
            {
                "losses": [losses, parallel_losses],
                "weights": max(float(np.abs(one - other).max()) for one, other in pairs),
                "shares": shares,
            }
        )
    )


if __name__ == "__main__":
    main()
