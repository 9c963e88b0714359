"""Scores of translations (BLEU, chrF, exact match), of parses (EVALB's F1), and plots."""

from keras_transformer.evaluation.attention_map import plot_attention
from keras_transformer.evaluation.bleu import Score, corpus_bleu, corpus_chrf, exact_match
from keras_transformer.evaluation.brackets import SentenceScore
from keras_transformer.evaluation.evalb_parameters import EvalbParameters
from keras_transformer.evaluation.learning_curve import plot_learning_curve
from keras_transformer.evaluation.paper_bleu import paper_bleu
from keras_transformer.evaluation.parseval import ParsevalScore, ParsevalSummary, parseval

__all__ = [
    "EvalbParameters",
    "ParsevalScore",
    "ParsevalSummary",
    "Score",
    "SentenceScore",
    "corpus_bleu",
    "corpus_chrf",
    "exact_match",
    "paper_bleu",
    "parseval",
    "plot_attention",
    "plot_learning_curve",
]
