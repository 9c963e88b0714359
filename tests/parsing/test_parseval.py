"""EVALB's rules counted by hand, and against a count over sets of words.

`test_evalb.py` compares tables and summaries with the C program.
"""

import collections
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer.errors import UserError
from keras_transformer.parsing import EvalbParameters, Tree, parseval
from tests.treebank_data import EXAMPLES, LABELS, trees

GOLD = "(S (NP (DT The) (NN dog)) (VP (VBZ chases) (NP (PRP$ its) (NN tail))) (. .))"
FLAT = "(S (NP (DT The)) (NN dog) (VP (VBZ chases) (PRP$ its) (NN tail)) (. .))"
PARTICLES = "(VP (VB a) (PRT (RP b)) (ADVP (RB c)) (ADVP (RB d)))"
QUESTION = "(S1 (S (NP (NN a) (? ?)) (VP (VBZ b) (! !))))"


def score(*pairs, parameters=None):
    """The score of pairs of bracketed texts, gold and parse; None is no tree."""
    gold, parses = (
        [text and Tree.parse(text) for text in side] for side in zip(*pairs, strict=True)
    )
    return parseval(gold, parses, parameters)


def one_sentence(gold, parse, parameters=None):
    [sentence] = score((gold, parse), parameters=parameters).sentences
    return sentence


def status(gold, parse):
    return one_sentence(gold, parse).status


NEW = EvalbParameters.new()
SPANS = EvalbParameters(labelled=False)


@pytest.mark.parametrize("gold, parse, parameters, expected", [
    # Brackets are constituents and not tags; each needs its label and its span.
    (GOLD, GOLD, None, (4, 4, 4)),
    (GOLD, GOLD.replace("NP (PRP$", "PP (PRP$"), None, (3, 4, 4)),
    (GOLD, FLAT, None, (2, 4, 3)),
    # Deleted words are not compared.
    (GOLD, GOLD.replace("(. .)", "(: ;) (, ,)"), None, (4, 4, 4)),
    # Constituents that deletion leaves empty do not count.
    ("(S (NP (-NONE- *)) (PRN (X (: -) (, ,))) (VP (VB Go)))", "(S (VP (VB Go)))", None, (2, 2, 2)),
    # Function tags and indices.
    ("(S-IMP (NP-SBJ-1 (NN a)) (PP=2 (IN b)) (VP-X=3 (VB c)))",
     "(S (NP-LGS (NN a)) (PP (IN b)) (VP=1-Y (VB c)))", None, (4, 4, 4)),
    # ADVP and PRT are the same.
    (PARTICLES, "(VP (VB a) (ADVP (RP b)) (PRT (RB c)) (ADJP (RB d)))", None, (3, 4, 4)),
    (PARTICLES, "(VP (VB a) (ADVP (RP b)) (PRT (RB c)) (ADJP (RB d)))",
     EvalbParameters(equal_labels=()), (1, 4, 4)),
    # A constituent with a label to delete loses its bracket and keeps its words.
    ("(TOP (S (NP (NN a)) (. (NP (NN b)))))", "(S (NP (NN a)) (NP (NN b)))", None, (3, 3, 3)),
    ("(ROOT (NP (NN a)))", "(NP (NN a))",
     EvalbParameters(equal_labels=(("TOP", "ROOT"),)), (1, 1, 1)),
    # A root without a label counts as TOP; others count.
    (f"( {GOLD})", GOLD, None, (4, 4, 4)),
    (f"(S1 {GOLD})", GOLD, None, (4, 5, 4)),
    # Brackets of a unary chain match one to one.
    ("(NP (NP (NP (NN a))))", "(NP (NP (NN a)))", None, (2, 3, 2)),
    ("(S (VP (VB a)))", "(VP (S (VB a)))", None, (2, 2, 2)),
    ("(ADVP (PRT (RB a)))", "(PRT (PRT (RB a)))", None, (2, 2, 2)),
    # Punctuation does not count, other symbols do.
    ("(S (NP (NN a) (, ,) (`` x)) (VP (VBZ b)))", "(S (NP (NN a)) (VP (, ,) (`` x) (VBZ b)))",
     None, (3, 3, 3)),
    ("(S (NP (NN a) (HYPH x)) (VP (VBZ b)))", "(S (NP (NN a)) (VP (HYPH x) (VBZ b)))",
     None, (1, 3, 3)),
    # Without labels only spans count.
    ("(S (NP (NN a)))", "(X (Y (Z (NN a))))", SPANS, (2, 2, 3)),
    # new.prm deletes more.
    (QUESTION, "(S (NP (NN a)) (? ?) (VP (VBZ b)) (! !))", NEW, (3, 3, 3)),
])  # fmt: skip
def test_the_brackets_that_match(gold, parse, parameters, expected):
    """How many match, of how many in the gold tree and in the parse."""
    sentence = one_sentence(gold, parse, parameters)
    assert sentence.status == 0
    assert (sentence.matched, sentence.gold_brackets, sentence.test_brackets) == expected


@pytest.mark.parametrize("parse", [
    "(S (NP (DT The) (NN dog)) (VP (VBZ chases) (NP (NN tail))) (. .))",  # One is missing.
    GOLD.replace("dog", "cat"),
    # A word that counts in one tree and is deleted from the other, by its tags there.
    GOLD.replace("(. .)", "(SYM .)"),
    GOLD.replace("NN dog", ": dog"),
])  # fmt: skip
def test_a_sentence_whose_words_differ_is_an_error_and_left_out(parse):
    assert status(GOLD, parse) == 1
    result = score((GOLD, parse), ("(NP (NN a))", "(NP (NN a))")).all
    assert (result.num_errors, result.num_skipped, result.num_valid) == (1, 0, 1)
    assert (result.f1, result.complete_match, result.tagging_accuracy) == (100, 100, 100)


def test_a_parse_without_words_is_skipped_and_left_out():
    assert status(GOLD, None) == 2
    assert status(GOLD, "(S (. .))") == 2
    assert status("(S (. .))", "(S (. .))") == 2
    assert status(None, None) == 2
    # Not so a gold tree without words.
    assert status(None, GOLD) == 1
    assert status("(S (. .))", GOLD) == 1


def test_the_strict_f1_counts_every_sentence():
    result = score((GOLD, GOLD), (GOLD, GOLD.replace("dog", "cat")), (GOLD, None)).all
    # 4 brackets match of 12 in the gold trees, and of 8 in the parses.
    assert (result.recall, result.precision, result.f1) == (100, 100, 100)
    assert result.strict_recall == pytest.approx(100 * 4 / 12)
    assert result.strict_precision == 50
    assert result.strict_f1 == pytest.approx(40)
    valid = score((GOLD, GOLD.replace("VP", "PP")))
    assert valid.strict_f1 == valid.f1 == 75


def test_tags_are_compared_as_they_are_of_words_that_count():
    gold = "(S (NN a) (NN-X b) (RB c) (PRT d) (. .))"
    parse = "(S (NN a) (NN b) (VB c) (ADVP d) (: .))"
    sentence = one_sentence(gold, parse)
    # PRT is ADVP, wherever they stand; they are compared even if brackets have no labels.
    assert (sentence.words, sentence.correct_tags) == (4, 2)
    pairs = (gold, parse), ("(S (NN a))", "(X (NN a))")
    assert score(*pairs, parameters=SPANS).all.tagging_accuracy == 60


def test_a_parse_without_tags_is_judged_by_those_of_the_gold_tree():
    gold = "(S (NP (NN a) (-NONE- *)) (, ,) (VP (VBZ b)) (. .))"
    parse = "(S (NP (XX a) (XX ,)) (VP (XX b) (XX .)))"
    result = score((gold, parse))
    assert result.uses_gold_tags and "tags:gold" in result.signature
    assert result.summary().endswith("Tags for deletion         = the gold tree's")
    # That the parse has no tags is not hidden.
    assert (result.f1, result.all.tagging_accuracy) == (100, 0)
    # Tags that the parse has are its own.
    assert status(gold, parse.replace("XX b", ". b")) == 1
    # Other words, or another number of them, remain errors.
    assert status(gold, parse.replace("XX b", "XX c")) == 1
    assert status(gold, parse.replace(" (XX .)", "")) == 1
    # XX is a tag like others in a gold tree that has it.
    assert not score((GOLD.replace("NN", "XX"),) * 2).uses_gold_tags


# Another way to count: constituents are sets of words' positions, multisets of them intersect.
def reference_brackets(tree, parameters):
    found = []

    def visit(node, positions):
        if node.is_leaf:
            inside = set() if node.label in parameters.delete_labels else {next(positions)}
        else:
            inside = set().union(*(visit(child, positions) for child in node.children))
            if inside and node.label not in parameters.delete_labels:
                label = "PRT/ADVP" if node.label in ("PRT", "ADVP") else node.label
                found.append((label, frozenset(inside)))
        return inside

    visit(tree, iter(range(10_000)))
    return found


@st.composite
def pairs_of_trees(draw):
    """Two trees over the same words and tags."""
    labels = (*LABELS, "PRT", "TOP")
    first, second = draw(trees(labels)), draw(trees(labels))
    leaves = list(first.leaves())

    def over(tree, positions):
        if tree.is_leaf:
            tag, word = leaves[next(positions) % len(leaves)]
            return Tree(tag, word)
        return Tree(tree.label, [over(child, positions) for child in tree.children])

    count = len(second.words())
    second = over(second, iter(range(count)))
    missing = [Tree(tag, word) for tag, word in leaves[count:]]
    if count > len(leaves):
        first = Tree("S", [first, *(Tree(*leaf) for leaf in list(second.leaves())[len(leaves) :])])
    return first, Tree(second.label, [*second.children, *missing])


@settings(EXAMPLES, max_examples=30)
@given(pairs_of_trees())
def test_random_trees_are_counted_as_sets_of_words_are(pair):
    gold, parse = pair
    parameters = EvalbParameters()
    [sentence] = parseval([gold], [parse]).sentences
    words = [leaf for leaf in gold.leaves() if leaf[0] not in parameters.delete_labels]
    assert sentence.status == (0 if words else 2)
    gold_brackets, test_brackets = (reference_brackets(tree, parameters) for tree in pair)
    assert sentence.gold_brackets == len(gold_brackets)
    assert sentence.test_brackets == len(test_brackets)
    common = collections.Counter(gold_brackets) & collections.Counter(test_brackets)
    assert sentence.matched == common.total()
    assert sentence.crossing == sum(
        any(a & b and a - b and b - a for _, b in gold_brackets) for _, a in test_brackets
    )
    assert (sentence.words, sentence.correct_tags) == (len(words), len(words))


def test_the_summary_and_the_dict_have_what_evalb_does_not_print():
    result = score((GOLD, GOLD), (GOLD, None), (GOLD, "(NP (NN x))"))
    assert str(result) == "F1 100.00 (COLLINS.prm|tags:parse|sentences:3|errors:1|skipped:1)"
    assert result.summary().endswith(
        "\n\n-- Not of EVALB --\nF1, errors count as 0     =  47.06\n"  # 2 * 4 / (12 + 5)
        "Tags for deletion         = the parse's own"
    )
    kept = json.loads(json.dumps(result.to_dict()))
    assert kept["all"]["f1"] == 100 and kept["signature"] == result.signature


def test_nothing_to_score_or_lists_of_different_lengths_are_errors():
    tree = Tree.parse(GOLD)
    with pytest.raises(UserError, match="no trees"):
        parseval([], [])
    with pytest.raises(UserError, match="Received: 1 parses and 2 gold trees"):
        parseval([tree, tree], [tree])
