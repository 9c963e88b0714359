"""Regularizers of our layers: Keras collects their losses and adds them to that of the training."""

import keras
import numpy as np
from keras import ops

from keras_transformer.layers import Decoder, DecoderBlock, Encoder, EncoderBlock, TiedEmbedding
from tests.closeness import assert_close
from tests.layers.harness import reloaded

FACTOR = 0.01
IDS = np.array([[5, 6, 7], [9, 3, 4]], "int32")


def make_model(regularizer=FACTOR):
    """An encoder-decoder whose embedding, used three times, is regularized as the kernels are."""
    l2 = keras.regularizers.L2(regularizer) if regularizer else None
    sizes = {"num_heads": 2, "intermediate_dim": 16, "dropout": 0.0, "kernel_regularizer": l2}
    embedding = TiedEmbedding(12, 8, embeddings_regularizer=l2, name="embedding")
    encoder = Encoder([EncoderBlock(**sizes)], dropout=0.0, name="encoder")
    decoder = Decoder([DecoderBlock(**sizes)], dropout=0.0, name="decoder")
    source, target = (keras.Input((None,), dtype="int32") for _ in range(2))
    states = decoder(embedding(target), encoder(embedding(source)))
    model = keras.Model([source, target], embedding(states, reverse=True))
    model.compile(
        keras.optimizers.SGD(0.1),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        run_eagerly=True,
    )
    return model


def losses_of(model):
    return [float(ops.convert_to_numpy(loss)) for loss in model.losses]


def test_the_losses_are_those_of_all_matrices_once():
    model = make_model()
    matrices = [weight.numpy() for weight in model.weights if len(weight.shape) == 2]
    # The embedding; four projections and two maps of the encoder; eight and two of the decoder.
    assert len(model.losses) == len(matrices) == 1 + 6 + 10
    expected = FACTOR * sum(np.sum(np.square(matrix)) for matrix in matrices)
    assert_close(sum(losses_of(model)), expected)


def test_they_are_part_of_the_loss_that_is_trained():
    model, plain = make_model(), make_model(regularizer=None)
    plain.set_weights(model.get_weights())
    loss, plain_loss = (m.evaluate([IDS, IDS], IDS, verbose=0) for m in (model, plain))
    assert_close(loss - plain_loss, sum(losses_of(model)), scale=loss)
    before = model.get_weights()
    for m in (model, plain):
        m.train_on_batch([IDS, IDS], IDS)
    # One step of SGD(0.1) moves a matrix by the gradient of the regularizer more, 2 * FACTOR * w.
    for weight, other, old in zip(model.get_weights(), plain.get_weights(), before, strict=True):
        shrinkage = 0.1 * 2 * FACTOR * old if len(weight.shape) == 2 else 0.0
        assert_close(other - weight, shrinkage, sum_length=64, scale=1.0)


def test_a_saved_model_has_the_same_losses(tmp_path):
    model = make_model()
    again = reloaded(model, tmp_path)
    np.testing.assert_array_equal(losses_of(again), losses_of(model))
