"""Constituency parsing: trees, how they are written for a model, `Parser` and EVALB's scores."""

from keras_transformer import lazy_names

# Imported when they are used: the command line starts without Keras.
_MODULES = {
    "evaluation.brackets": ["SentenceScore"],
    "evaluation.evalb_parameters": ["EvalbParameters"],
    "evaluation.parseval": ["ParsevalScore", "ParsevalSummary", "parseval"],
    "f1_on_dev": ["F1OnDev"],
    "linearization": ["Linearization"],
    "parser": ["Parse", "Parser"],
    "repair": ["RebuiltTree"],
    "treebank": ["TreebankCorpus", "clean_tree", "read_tree_lines", "read_trees", "write_trees"],
    "trees": ["Tree", "draw_tree", "format_tree"],
    "well_formed_trees": ["TreeSymbols", "WellFormedTrees", "tree_symbols"],
}
__all__, __getattr__, __dir__ = lazy_names(__name__, _MODULES)
