"""Conversions of layers and models to and from Keras, KerasHub, torch and transformers.

A function imports the other library when it is called.
"""

from keras_transformer import lazy_names

_MODULES = {
    "keras": ["from_keras", "from_keras_hub", "to_keras", "to_keras_hub"],
    "marian": ["from_marian", "to_marian"],
    "multilingual": ["load_multilingual"],
    "opus_mt": ["load_opus_mt"],
    "torch": ["from_torch", "to_torch"],
}
__all__, __getattr__, __dir__ = lazy_names(__name__, _MODULES)
