"""The Transformer as a functional Keras model, its configuration and its presets."""

from keras_transformer.models.causal_language_model import CausalLanguageModel
from keras_transformer.models.ensemble import Ensemble
from keras_transformer.models.transformer import Transformer
from keras_transformer.settings.presets import Preset, TrainingRecipe, get_preset, list_presets
from keras_transformer.settings.transformer_config import TransformerConfig

__all__ = [
    "CausalLanguageModel",
    "Ensemble",
    "Preset",
    "TrainingRecipe",
    "Transformer",
    "TransformerConfig",
    "get_preset",
    "list_presets",
]
