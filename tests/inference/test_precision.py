"""`dtype="auto"`: the faster precision, said in one line."""

import logging

import pytest

from keras_transformer.export import export_saved_model
from keras_transformer.inference import Translator, pipeline
from keras_transformer.models import TransformerConfig
from tests.tiny_translator import tiny_translator

CONFIG = TransformerConfig(vocab_size=100)


@pytest.mark.parametrize(
    "seconds, chosen", [((0.4, 0.1), "bfloat16"), ((0.11, 0.1), "float32"), ((1, 3), "float32")]
)
def test_the_faster_one_is_chosen_and_said(seconds, chosen, monkeypatch, caplog):
    times = dict(zip(("float32", "bfloat16"), seconds, strict=True))
    monkeypatch.setattr(pipeline, "_seconds", lambda dtype, config: times[dtype])
    caplog.set_level(logging.INFO, "keras_transformer")
    assert pipeline.choose_precision("auto", CONFIG) == chosen
    assert f"{seconds[0] / seconds[1]:.1f} times as fast as float32: {chosen}" in caplog.text


def test_a_product_takes_time_in_both():
    assert pipeline._seconds("float32", CONFIG) > 0 < pipeline._seconds("bfloat16", CONFIG)


@pytest.mark.tensorflow_only("a SavedModel is written on the TensorFlow backend")
def test_models_are_loaded_and_exported_in_it(monkeypatch, tmp_path):
    import tensorflow as tf

    monkeypatch.setattr(tf.saved_model, "save", lambda *_, **__: None)
    directory = tiny_translator().save(tmp_path / "model")
    times = {"float32": 2.0, "bfloat16": 1.0}
    monkeypatch.setattr(pipeline, "_seconds", lambda dtype, config: times[dtype])
    translator = Translator.load(directory, dtype="auto")
    assert translator.model.dtype_policy.name == "bfloat16"
    export_saved_model(Translator.load(directory), tmp_path / "served", dtype="auto")
    config = tmp_path / "served/assets.extra/model/config.json"
    assert '"precision": "bfloat16"' in config.read_text()
