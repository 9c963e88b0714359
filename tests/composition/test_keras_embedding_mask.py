"""Our stacks on `keras.layers.Embedding(mask_zero=True)`: the mask that Keras carries along counts.

No mask is passed by hand: each layer hands the implicit mask on, to the pooling as well.
"""

import keras
import numpy as np

from keras_transformer.layers import Decoder, DecoderBlock, Encoder, EncoderBlock
from tests.closeness import assert_close
from tests.composition.answers import answer

ALONE = np.array([[5, 9, 3]], "int32")
PADDED = np.array([[5, 9, 3, 0, 0]], "int32")


def make_encoder():
    return Encoder([EncoderBlock(num_heads=2, intermediate_dim=32) for _ in range(2)])


def make_sequential(mask_zero):
    return keras.Sequential(
        [
            keras.layers.Embedding(20, 16, mask_zero=mask_zero, embeddings_initializer="normal"),
            make_encoder(),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(4),
        ]
    )


def make_translator():
    source, target = (keras.Input((None,), dtype="int32") for _ in range(2))
    encoded = make_encoder()(keras.layers.Embedding(20, 16, mask_zero=True)(source))
    decoder = Decoder([DecoderBlock(num_heads=2, intermediate_dim=32)])
    states = decoder(keras.layers.Embedding(20, 16, mask_zero=True)(target), encoded)
    return keras.Model([source, target], keras.layers.Dense(20)(states))


def test_padding_changes_nothing_in_a_sequential_model():
    model = make_sequential(mask_zero=True)
    assert_close(answer(model, PADDED), answer(model, ALONE))


def test_padding_would_count_without_the_mask():
    model = make_sequential(mask_zero=False)
    assert np.abs(answer(model, PADDED) - answer(model, ALONE)).max() > 0.01


def test_padding_of_source_and_target_changes_nothing_in_a_functional_model(tmp_path):
    model = make_translator()
    model.save(tmp_path / "model.keras")
    for translator in (model, keras.saving.load_model(tmp_path / "model.keras")):
        alone = answer(translator, [ALONE, ALONE])
        assert_close(answer(translator, [PADDED, ALONE]), alone)
        assert_close(answer(translator, [PADDED, PADDED])[:, :3], alone)


def test_fit_counts_no_loss_at_the_padding():
    """Keras weights the loss with the mask that arrives at the output."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
    model = make_translator()
    model.compile(loss=loss, run_eagerly=True)
    labels = np.array([[9, 3, 3]])
    alone = model.evaluate([ALONE, ALONE], labels, verbose=0)
    padded = model.evaluate([PADDED, PADDED], np.array([[9, 3, 3, 0, 0]]), verbose=0)
    assert_close(padded, alone)
