"""Inference: pipelines from text to answers, and model directories."""

from keras_transformer import lazy_names

# Imported on first use: the command line reads the registry of tasks without importing Keras.
_MODULES = {
    "glossary": ["Glossary"],
    "results": ["Alignment", "Hypothesis", "Score"],
    "sentences": ["SentenceProfile"],
    "shortlist": ["Shortlist"],
    "translator": ["Translator"],
}
__all__, __getattr__, __dir__ = lazy_names(__name__, _MODULES)
