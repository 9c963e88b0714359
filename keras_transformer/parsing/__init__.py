"""Constituency parsing: trees, how they are written for a model, `Parser` and EVALB's scores."""

from keras_transformer import lazy_names

# These are imported when they are used, so that the command line starts without Keras.
_MODULES = {
    "evalb": ["EvalbParameters", "SentenceScore"],
    "parseval_score": ["ParsevalScore", "ParsevalSummary", "parseval"],
    "f1_on_dev": ["F1OnDev"],
    "linearization": ["Linearization", "RebuiltTree"],
    "parser": ["Parse", "Parser"],
    "treebank": ["TreebankCorpus", "clean_tree", "read_tree_lines", "read_trees", "write_trees"],
    "trees": ["Tree", "draw_tree", "format_tree"],
    "well_formed_trees": ["TreeSymbols", "WellFormedTrees", "tree_symbols"],
}
__all__, __getattr__, __dir__ = lazy_names(__name__, _MODULES)
