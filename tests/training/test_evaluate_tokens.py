"""evaluate_tokens: means over tokens, equal to a NumPy sum over all batches of all shapes."""

import keras
import numpy as np

from keras_transformer.models import Transformer, TransformerConfig
from keras_transformer.training import evaluate_tokens

CONFIG = TransformerConfig(
    vocab_size=20,
    num_encoder_layers=1,
    num_decoder_layers=1,
    d_model=8,
    intermediate_dim=16,
    num_heads=2,
    dropout=0.5,
)


def test_equals_numpy_over_batches_of_different_shapes_without_dropout():
    generator = np.random.default_rng(0)
    model = Transformer(CONFIG)
    batches, losses, right = [], [], []
    for rows, width, length in ((3, 5, 5), (2, 7, 4)):
        ids = generator.integers(4, 20, (rows, width)).astype("int32")
        labels = generator.integers(4, 20, (rows, width)).astype("int32")
        mask = np.arange(width) < np.r_[length, [1] * (rows - 1)][:, None]
        inputs = {"source": ids, "target": ids}
        batches.append((inputs, labels * mask, (mask / mask.sum()).astype("float32")))
        logits = keras.ops.convert_to_numpy(model(inputs, training=False)).astype("float64")
        log_softmax = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        loss = -np.take_along_axis(log_softmax, labels[..., None], -1)[..., 0]
        losses.append(loss[mask])
        right.append((logits.argmax(-1) == labels)[mask])
    losses, right = np.concatenate(losses), np.concatenate(right)
    result = evaluate_tokens(model, batches)
    np.testing.assert_allclose(result.loss, losses.mean(), rtol=1e-5)
    np.testing.assert_allclose(result.perplexity, np.exp(losses.mean()), rtol=1e-4)
    np.testing.assert_allclose(result.accuracy, right.mean())
    assert result.num_tokens == len(losses)
