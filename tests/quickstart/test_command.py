"""`quickstart` fails before its training, if it could not export the model."""

import keras

from keras_transformer.cli import main


def test_another_backend_is_refused_before_the_training(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr("keras_transformer.training.train", None)
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    folders = ["--output", tmp_path / "run", "--saved-model", tmp_path / "saved"]
    assert main(["quickstart", *map(str, folders)]) == 2
    error = capfd.readouterr().err
    assert "needs KERAS_BACKEND=tensorflow. Received: jax" in error
    assert not (tmp_path / "run").exists()
