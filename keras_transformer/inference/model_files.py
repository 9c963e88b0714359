"""The files that make a folder a model directory, found without Keras."""

import os
import pathlib

from keras_transformer.errors import UserError
from keras_transformer.files import current_file
from keras_transformer.settings.training_settings import SETTINGS_FILE

CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.weights.h5"
# Folder in a SavedModel that holds a model directory without weights.
IN_SAVED_MODEL = "assets.extra/model"


def checked_directory(directory: str | os.PathLike) -> pathlib.Path:
    """Returns a path; raises a `UserError` if it is a file."""
    directory = pathlib.Path(directory)
    if directory.exists() and not directory.is_dir():
        raise UserError(f"Expected a model directory but {str(directory)!r} is a file.")
    return directory


def find_config(directory: str | os.PathLike) -> pathlib.Path:
    """Returns the path of a model directory's config; raises a `UserError` if there is none.

    Commands call it before they import Keras, which takes seconds.
    """
    directory = checked_directory(directory)
    if not directory.exists():
        raise UserError(f"Model directory not found: {str(directory)!r}.")
    path = current_file(directory, CONFIG_FILE)
    if not path.exists():
        reason = f"{path} is missing."
        if (directory / SETTINGS_FILE).exists():
            reason += " A training writes it at its end: run the same training again to finish it."
        elif (directory / "saved_model.pb").exists():
            reason += " It is a SavedModel: give the model directory that it was exported from."
        raise UserError(f"{str(directory)!r} is not a model directory: {reason}")
    return path
