"""Scores of translations (BLEU, chrF, exact match), plots, and attention."""

from keras_transformer import lazy_names

# These are imported on first use, because scores need no Keras.
_MODULES = {
    "attention": ["AttentionWeights", "attention_page", "attention_weights"],
    "bleu": [
        "Comparison",
        "Score",
        "bleu_tokenizer",
        "compare_systems",
        "corpus_bleu",
        "corpus_chrf",
        "exact_match",
        "paper_bleu",
    ],
    "plots": ["plot_attention", "plot_learning_curve"],
}
__all__, __getattr__, __dir__ = lazy_names(__name__, _MODULES)
