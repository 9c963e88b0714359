"""Weights to and from other libraries: Keras, torch, transformers and KerasHub.

Their packages are imported when a function is called.
"""

from keras_transformer.bridges.keras import from_keras, from_keras_hub, to_keras, to_keras_hub
from keras_transformer.bridges.marian import from_marian, to_marian
from keras_transformer.bridges.torch import from_torch, to_torch

__all__ = [
    "from_keras",
    "from_keras_hub",
    "from_marian",
    "from_torch",
    "to_keras",
    "to_keras_hub",
    "to_marian",
    "to_torch",
]
