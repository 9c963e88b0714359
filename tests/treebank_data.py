"""Where the tests that need a treebank find one, and random trees for those that do not."""

import os
import pathlib

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings

from keras_transformer.parsing import Tree

LABELS = ("S", "NP", "VP", "PP", "ADVP")
TAGS = ("NN", "VBZ", "IN", "-LRB-", ".", "``")
# Machines may be slow or busy; and a test should say the same each time.
EXAMPLES = settings(deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
WORDS = ("dog", "barks", "(", "a)b(", ".", "''", "ä€", "thin\u2009space", "-")


def treebank_file(part):
    """The path of a part of the treebank; the test is skipped where there is none."""
    root = os.environ.get("KERAS_TRANSFORMER_DATA")
    path = pathlib.Path(root or "") / "treebank" / f"craft.{part}.trees.gz"
    if not root or not path.is_file():
        pytest.skip("needs trees: set KERAS_TRANSFORMER_DATA to a folder that holds treebank/")
    return path


def trees(labels=LABELS, tags=TAGS, words=WORDS, max_leaves=12):
    """Random constituents: any shape, unary chains too."""

    def constituents(children):
        return st.builds(Tree, st.sampled_from(labels), st.lists(children, min_size=1, max_size=4))

    leaves = st.builds(Tree, st.sampled_from(tags), st.sampled_from(words))
    return constituents(st.recursive(leaves, constituents, max_leaves=max_leaves))
