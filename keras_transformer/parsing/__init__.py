"""Constituency parsing: trees, how they are written for a model, `Parser` and EVALB's scores."""

from keras_transformer import lazy_names

# These are imported when they are used, so that the command line starts without Keras.
_MODULES = {
    "evalb": ["EvalbParameters", "SentenceScore"],
    "parseval_score": ["ParsevalScore", "ParsevalSummary", "parseval"],
    "joined_trees": ["JoinedTrees"],
    "linearization": ["Linearization", "RebuiltTree"],
    "parser": ["F1OnDev", "Parse", "Parser"],
    "task": ["TreebankCorpus"],
    "trees": [
        "Tree",
        "clean_tree",
        "draw_tree",
        "format_tree",
        "read_tree_lines",
        "read_trees",
        "write_trees",
    ],
    "well_formed_trees": ["TreeSymbols", "WellFormedTrees", "tree_symbols"],
}
__all__, __getattr__, __dir__ = lazy_names(__name__, _MODULES)
