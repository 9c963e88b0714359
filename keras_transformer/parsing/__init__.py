"""Constituency parsing: trees, how they are written for a model, `Parser` and EVALB's scores."""

from keras_transformer.parsing.drawing import draw_tree, format_tree
from keras_transformer.parsing.evaluation.brackets import SentenceScore
from keras_transformer.parsing.evaluation.evalb_parameters import EvalbParameters
from keras_transformer.parsing.evaluation.parseval import ParsevalScore, ParsevalSummary, parseval
from keras_transformer.parsing.f1_on_dev import F1OnDev
from keras_transformer.parsing.linearization import Linearization
from keras_transformer.parsing.parser import Parse, Parser
from keras_transformer.parsing.repair import RebuiltTree
from keras_transformer.parsing.treebank import clean_tree, read_tree_lines, read_trees, write_trees
from keras_transformer.parsing.treebank_corpus import TreebankCorpus
from keras_transformer.parsing.trees import Tree
from keras_transformer.parsing.vocabulary import TreeSymbols, tree_symbols
from keras_transformer.parsing.well_formed_trees import WellFormedTrees

__all__ = [
    "EvalbParameters",
    "F1OnDev",
    "Linearization",
    "Parse",
    "Parser",
    "ParsevalScore",
    "ParsevalSummary",
    "RebuiltTree",
    "SentenceScore",
    "Tree",
    "TreeSymbols",
    "TreebankCorpus",
    "WellFormedTrees",
    "clean_tree",
    "draw_tree",
    "format_tree",
    "parseval",
    "read_tree_lines",
    "read_trees",
    "tree_symbols",
    "write_trees",
]
