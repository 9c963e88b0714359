"""From text to answers: a model with its tokenizers and a search, and model directories."""

from keras_transformer import lazy_names

# Without Keras: the command line asks the registry of tasks when it starts.
_MODULES = {
    "sentence_profile": ["SentenceProfile"],
    "shortlist": ["Shortlist"],
    "translator": ["Alignment", "Hypothesis", "Score", "Translator"],
}
__all__, __getattr__ = lazy_names(__name__, _MODULES)
