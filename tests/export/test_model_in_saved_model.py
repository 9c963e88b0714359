"""A SavedModel holds a model directory, which is loaded with the weights of the SavedModel."""

import numpy as np
import pytest

from keras_transformer.decoding import GreedySearch
from keras_transformer.evaluation import attention_weights
from keras_transformer.export import export_saved_model
from keras_transformer.inference.translator import Translator
from keras_transformer.layouts import IN_SAVED_MODEL
from keras_transformer.models import weight_files
from keras_transformer.models.ensemble import copy_of
from keras_transformer.models.weight_files import load_saved_model_weights
from tests.closeness import assert_close
from tests.layers.oracle_parameters import array
from tests.tiny_translator import sentence, tiny_model, tiny_tokenizer

TEXT = sentence(5)


def check_same_attention(loaded, pipeline):
    found, expected = attention_weights(loaded, TEXT), attention_weights(pipeline, TEXT)
    assert (found.source, found.target) == (expected.source, expected.target)
    for kind in ("encoder", "decoder", "cross"):
        assert_close(getattr(found, kind), getattr(expected, kind))
    for one, other in zip(loaded.model.weights, pipeline.model.weights, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(array(one), array(other))


def test_attention_is_that_of_the_exported_model(exported, translator):
    check_same_attention(Translator.load(exported / IN_SAVED_MODEL), translator)
    names = {path.name for path in (exported / IN_SAVED_MODEL).iterdir()}
    assert names == {"config.json", "source_tokenizer.model", "target_tokenizer.model"}


@pytest.mark.parametrize("has_amx, exporter_has_amx", [(False, True), (True, False)])
def test_another_processor_may_have_exported_the_weights(
    tmp_path, monkeypatch, has_amx, exporter_has_amx
):
    import tensorflow as tf

    from keras_transformer.inference.stored_kernels import StoredKernels, StoredTransformer

    model, holder = copy_of(tiny_model(1), "bfloat16"), tf.Module()
    monkeypatch.setattr(weight_files, "has_amx", lambda: exporter_has_amx)
    holder.model_variables = StoredKernels(copy_of(model, model_class=StoredTransformer)).variables
    monkeypatch.setattr(weight_files, "has_amx", lambda: has_amx)
    tf.train.Checkpoint(holder).write(str(tmp_path / "variables"))
    loaded = copy_of(tiny_model(2), "bfloat16")
    load_saved_model_weights(loaded, tmp_path / "variables")
    for one, other in zip(loaded.weights, model.weights, strict=True):
        np.testing.assert_array_equal(array(one), array(other))


@pytest.mark.slow
def test_in_bfloat16_it_is_that_of_the_rounded_model_with_the_search_of_the_export(tmp_path):
    model, search = tiny_model(num_encoder_layers=2), GreedySearch()
    settings = {"extra_length": 12, "search": search}
    plain = Translator(model, tiny_tokenizer(), **settings)
    directory = export_saved_model(plain, tmp_path / "m", search, dtype="bfloat16")
    loaded = Translator.load(directory / IN_SAVED_MODEL)
    assert loaded.search == search
    check_same_attention(
        loaded, Translator(copy_of(model, "bfloat16"), tiny_tokenizer(), **settings)
    )
