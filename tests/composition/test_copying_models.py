"""Copies: `clone_model` gives a plain functional model; a `Transformer` comes from its config."""

import keras
import numpy as np

from keras_transformer.decoding import GreedySearch
from keras_transformer.models import Transformer
from tests.composition.answers import answer, tiny_transformer

IDS = np.array([[5, 6, 7, 3], [9, 3, 0, 0]], "int32")
INPUTS = {"source": IDS, "target": IDS}


def test_a_copy_from_the_config_is_a_transformer_of_its_own():
    model = tiny_transformer()
    copy = Transformer.from_config(model.get_config())
    copy.set_weights(model.get_weights())
    np.testing.assert_array_equal(answer(copy, INPUTS), answer(model, INPUTS))
    state = copy.start_decoding(IDS, max_length=4)
    result = GreedySearch()(copy.decode_step, state, max_lengths=[4, 4], max_length=4)
    assert result.tokens.shape == (2, 1, 4)
    expected = answer(model, INPUTS)
    copy.target_embedding.embeddings.assign(copy.target_embedding.embeddings * 2)
    np.testing.assert_array_equal(answer(model, INPUTS), expected)
    assert np.abs(answer(copy, INPUTS) - expected).max() > 0.1


def test_a_clone_computes_the_same_and_has_no_decoding():
    """Keras clones the graph of any functional model and leaves its class behind."""
    model = tiny_transformer()
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    np.testing.assert_array_equal(answer(clone, INPUTS), answer(model, INPUTS))
    assert not isinstance(clone, Transformer)


def test_saved_config_and_weights_make_the_same_model(tmp_path):
    model = tiny_transformer()
    model.save_weights(tmp_path / "model.weights.h5")
    again = keras.models.model_from_json(model.to_json())
    again.load_weights(tmp_path / "model.weights.h5")
    assert isinstance(again, Transformer)
    np.testing.assert_array_equal(answer(again, INPUTS), answer(model, INPUTS))
