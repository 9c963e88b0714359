"""Scores of translations (BLEU, chrF, exact match), plots, and attention."""

from keras_transformer.evaluation.attention import (
    AttentionWeights,
    attention_page,
    attention_weights,
)
from keras_transformer.evaluation.attention_map import plot_attention
from keras_transformer.evaluation.bleu import Score, corpus_bleu, corpus_chrf, exact_match
from keras_transformer.evaluation.learning_curve import plot_learning_curve
from keras_transformer.evaluation.paper_bleu import paper_bleu

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
