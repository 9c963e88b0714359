"""Scores of translations (BLEU, chrF, exact match), plots, and attention."""

from keras_transformer import moved_names
from keras_transformer.evaluation.attention import (
    AttentionWeights,
    attention_page,
    attention_weights,
)
from keras_transformer.evaluation.bleu import (
    Score,
    corpus_bleu,
    corpus_chrf,
    exact_match,
    paper_bleu,
)
from keras_transformer.evaluation.plots import plot_attention, plot_learning_curve

__all__ = [
    "AttentionWeights",
    "Score",
    "attention_page",
    "attention_weights",
    "corpus_bleu",
    "corpus_chrf",
    "exact_match",
    "paper_bleu",
    "plot_attention",
    "plot_learning_curve",
]

__getattr__ = moved_names(__name__)
