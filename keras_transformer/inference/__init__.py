"""From text to answers: a model with its tokenizers and a search, and model directories."""

from keras_transformer import lazy_names

__all__ = ["Alignment", "Hypothesis", "Score", "SentenceProfile", "Translator"]

# Without Keras: the command line asks the registry of tasks when it starts.
__getattr__ = lazy_names(
    __name__,
    {
        "sentence_profile": ["SentenceProfile"],
        "translator": ["Alignment", "Hypothesis", "Score", "Translator"],
    },
)
