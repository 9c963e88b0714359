"""Loads every model of a folder and prints, as JSON, how far its outputs are from those saved."""

import json
import pathlib
import sys

import keras
import numpy as np

import keras_transformer  # noqa: F401  All that loading a model of its layers needs.

differences = {}
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.keras")):
    arrays = dict(np.load(path.with_suffix(".npz")))
    wanted = arrays.pop("outputs")
    outputs = keras.ops.convert_to_numpy(keras.saving.load_model(path)(arrays))
    differences[path.stem] = float(abs(outputs.astype("float64") - wanted).max())
print(json.dumps(differences))
