"""EVALB's rules one by one, counted by hand; all together, against a count over sets of words."""

import collections
import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_transformer.errors import UserError
from keras_transformer.parsing import EvalbParameters, Tree, clean_tree, parseval, read_trees
from tests.treebank_data import EXAMPLES, LABELS, treebank_file, trees

GOLD = "(S (NP (DT The) (NN dog)) (VP (VBZ chases) (NP (PRP$ its) (NN tail))) (. .))"


def score(*pairs, parameters=None):
    """The score of pairs of bracketed texts, gold and parse; None is no tree."""
    gold, parses = (
        [text and Tree.parse(text) for text in side] for side in zip(*pairs, strict=True)
    )
    return parseval(gold, parses, parameters)


def brackets(gold, parse, parameters=None):
    """How many brackets match, of how many in the gold tree and in the parse."""
    [sentence] = score((gold, parse), parameters=parameters).sentences
    assert sentence.status == 0
    return sentence.matched, sentence.gold_brackets, sentence.test_brackets


def status(gold, parse, parameters=None):
    [sentence] = score((gold, parse), parameters=parameters).sentences
    return sentence.status


def test_brackets_are_constituents_and_not_tags():
    assert brackets(GOLD, GOLD) == (4, 4, 4)
    result = score((GOLD, GOLD)).all
    assert (result.recall, result.precision, result.f1) == (100, 100, 100)


def test_a_bracket_needs_its_label_and_its_span():
    assert brackets(GOLD, GOLD.replace("NP (PRP$", "PP (PRP$")) == (3, 4, 4)
    parse = "(S (NP (DT The)) (NN dog) (VP (VBZ chases) (PRP$ its) (NN tail)) (. .))"
    assert brackets(GOLD, parse) == (2, 4, 3)
    result = score((GOLD, parse)).all
    assert result.recall == 50
    assert result.precision == pytest.approx(200 / 3)
    assert result.f1 == pytest.approx(2 * 50 * 200 / 3 / (50 + 200 / 3))


def test_brackets_of_all_sentences_are_counted_together():
    pairs = [(GOLD, GOLD), ("(NP (NN a) (NN b))", "(VP (NN a) (NN b))")]
    assert score(*pairs).f1 == 80  # 4 of 5, not the mean of 100 and 0.


@pytest.mark.parametrize("tag", [",", ":", "``", "''", ".", "-NONE-"])
def test_words_with_tags_of_punctuation_do_not_count(tag):
    gold = f"(S (NP (NN a) ({tag} x)) (VP (VBZ b)))"
    parse = f"(S (NP (NN a)) (VP ({tag} x) (VBZ b)))"
    assert brackets(gold, parse) == (3, 3, 3)
    assert score((gold, parse)).sentences[0].words == 2


@pytest.mark.parametrize("tag", ["-LRB-", "-RRB-", "HYPH", "#", "$", "?", "!", "SYM"])
def test_words_with_other_tags_count(tag):
    gold = f"(S (NP (NN a) ({tag} x)) (VP (VBZ b)))"
    parse = f"(S (NP (NN a)) (VP ({tag} x) (VBZ b)))"
    assert brackets(gold, parse) == (1, 3, 3)


def test_constituents_that_deletion_leaves_empty_do_not_count():
    gold = "(S (NP (-NONE- *)) (PRN (X (: -) (, ,))) (VP (VB Go)))"
    assert brackets(gold, "(S (VP (VB Go)))") == (2, 2, 2)


def test_function_tags_and_indices_do_not_count():
    gold = "(S-IMP (NP-SBJ-1 (NN a)) (PP=2 (IN b)) (VP-X=3 (VB c)))"
    parse = "(S (NP-LGS (NN a)) (PP (IN b)) (VP=1-Y (VB c)))"
    assert brackets(gold, parse) == (4, 4, 4)


def test_advp_and_prt_are_the_same():
    gold = "(VP (VB a) (PRT (RP b)) (ADVP (RB c)) (ADVP (RB d)))"
    parse = "(VP (VB a) (ADVP (RP b)) (PRT (RB c)) (ADJP (RB d)))"
    assert brackets(gold, parse) == (3, 4, 4)
    assert brackets(gold, parse, EvalbParameters(equal_labels=())) == (1, 4, 4)


def test_a_constituent_with_a_label_to_delete_loses_its_bracket_and_keeps_its_words():
    gold = "(TOP (S (NP (NN a)) (. (NP (NN b)))))"
    assert brackets(gold, "(S (NP (NN a)) (NP (NN b)))") == (3, 3, 3)
    assert brackets("(TOP-X (NP (NN a)))", "(NP (NN a))") == (1, 1, 1)


def test_a_root_without_a_label_counts_as_top():
    assert brackets(f"( {GOLD})", GOLD) == (4, 4, 4)


@pytest.mark.parametrize("root", ["S1", "ROOT"])
def test_other_roots_count(root):
    assert brackets(f"({root} {GOLD})", GOLD) == (4, 5, 4)


def test_brackets_of_a_unary_chain_match_one_to_one():
    gold, parse = "(NP (NP (NP (NN a))))", "(NP (NP (NN a)))"
    assert brackets(gold, parse) == (2, 3, 2)
    assert brackets(parse, gold) == (2, 2, 3)
    assert brackets("(S (VP (VB a)))", "(VP (S (VB a)))") == (2, 2, 2)
    assert brackets("(ADVP (PRT (RB a)))", "(PRT (PRT (RB a)))") == (2, 2, 2)


def test_crossing_brackets_are_those_of_the_parse():
    gold = "(S (NP (NN a) (NN b)) (VP (NN c) (PP (NN d) (NN e))))"
    # b-c overlaps NP and VP, which counts once; d-e is within VP.
    parse = "(S (NN a) (X (NN b) (NN c)) (Y (NN d) (NN e)))"
    assert score((gold, parse)).sentences[0].crossing == 1
    # a-c overlaps VP, and so does b-c.
    parse = "(S (X (NN a) (Y (NN b) (NN c))) (NN d) (NN e))"
    assert score((gold, parse)).sentences[0].crossing == 2


def test_a_bracket_within_another_does_not_cross():
    gold = "(S (NP (NN a) (NN b)) (VP (NN c)))"
    assert score((gold, "(S (X (NN a)) (Y (NN b)) (Z (NN c)))")).sentences[0].crossing == 0
    assert score((gold, "(X (Y (Z (NN a) (NN b) (NN c))))")).sentences[0].crossing == 0


def test_brackets_that_do_not_count_do_not_cross():
    gold = "(S (NP (NN a) (NN b)) (NN c))"
    assert score((gold, "(S (NN a) (X (NN b) (NN c)))")).sentences[0].crossing == 1
    assert score((gold, "(S (NN a) (TOP (NN b) (NN c)))")).sentences[0].crossing == 0
    gold = "(S (TOP (NN a) (NN b)) (NN c))"
    assert score((gold, "(S (NN a) (X (NN b) (NN c)))")).sentences[0].crossing == 0


def test_means_of_crossing_and_complete_match_are_of_valid_sentences():
    words = "(NN a) (NN b) (NN c) (NN d) (NN e)"
    flat = f"(S {words})"
    right = "(S (NN a) (X (NN b) (X (NN c) (X (NN d) (NN e)))))"
    left = "(S (X (X (X (NN a) (NN b)) (NN c)) (NN d)) (NN e))"
    two = "(S (X (X (NN a) (NN b)) (NN c)) (NN d) (NN e))"
    # Left to right: each of three brackets crosses. Of `two`: both. Of `flat`: none.
    result = score((right, left), (right, two), (right, flat), (right, right), (right, None)).all
    assert result.average_crossing == (3 + 2 + 0 + 0) / 4
    assert (result.no_crossing, result.two_or_less_crossing) == (50, 75)
    assert result.complete_match == 25
    assert (result.num_sentences, result.num_skipped, result.num_valid) == (5, 1, 4)


def test_a_match_is_complete_only_if_nothing_is_missing_or_too_much():
    parse = GOLD.replace("(VBZ chases)", "(VP (VBZ chases))")
    assert score((GOLD, parse), (parse, GOLD)).all.complete_match == 0
    # Tags and punctuation do not matter.
    parse = GOLD.replace("NN dog", "VB dog").replace("tail))) (. .))", "tail)) (. .)))")
    assert score((GOLD, parse)).all.complete_match == 100


@pytest.mark.parametrize(
    "parse",
    [
        "(S (NP (DT The) (NN dog)) (VP (VBZ chases) (NP (NN tail))) (. .))",  # One is missing.
        GOLD.replace("dog", "cat"),
        GOLD.replace("dog", "Dog"),
        # A word that counts in one tree and is deleted from the other, by its tags there.
        GOLD.replace("(. .)", "(SYM .)"),
        GOLD.replace("NN dog", ": dog"),
    ],
)
def test_a_sentence_whose_words_differ_is_an_error_and_left_out(parse):
    assert status(GOLD, parse) == 1
    result = score((GOLD, parse), ("(NP (NN a))", "(NP (NN a))")).all
    assert (result.num_errors, result.num_skipped, result.num_valid) == (1, 0, 1)
    assert (result.f1, result.complete_match, result.tagging_accuracy) == (100, 100, 100)


def test_words_that_are_deleted_are_not_compared():
    assert brackets(GOLD, GOLD.replace("(. .)", "(: ;) (, ,)")) == (4, 4, 4)
    assert brackets(GOLD, GOLD.replace(" (. .)", "")) == (4, 4, 4)


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


def test_the_short_sentences_are_those_of_up_to_40_words_of_the_gold_tree():
    def sentence(num_words, extra=""):
        return f"(S {'(NN a) ' * num_words}{extra})"

    # Punctuation counts for the length, a trace does not.
    lengths = [
        (sentence(40), 40),
        (sentence(41), 41),
        (sentence(39, "(. .)"), 40),
        (sentence(40, "(. .)"), 41),
        (sentence(40, "(-NONE- *)"), 40),
    ]
    result = score(*((text, text) for text, _ in lengths))
    assert [sentence.length for sentence in result.sentences] == [length for _, length in lengths]
    assert (result.all.num_sentences, result.short.num_sentences) == (5, 3)
    # Errors and skipped sentences have the length of the gold tree.
    result = score((sentence(41), sentence(3)), (sentence(40), sentence(41)), (sentence(41), None))
    assert (result.all.num_errors, result.all.num_skipped) == (2, 1)
    assert (result.short.num_errors, result.short.num_skipped) == (1, 0)
    shorter = EvalbParameters(cutoff_length=4)
    result = score((GOLD, GOLD), ("(S (. .) (NN a))",) * 2, parameters=shorter)
    assert result.short.num_sentences == 1


def test_tags_are_compared_as_they_are_of_words_that_count():
    gold = "(S (NN a) (NN-X b) (RB c) (PRT d) (. .))"
    parse = "(S (NN a) (NN b) (VB c) (ADVP d) (: .))"
    [sentence] = score((gold, parse)).sentences
    # PRT is ADVP, wherever they stand.
    assert (sentence.words, sentence.correct_tags) == (4, 2)
    assert score((gold, parse), ("(S (NN a))",) * 2).all.tagging_accuracy == 60


def test_spans_alone_count_without_labels():
    parse = GOLD.replace("VP", "X").replace("NN dog", "VB dog")
    result = score((GOLD, parse), parameters=EvalbParameters(labelled=False))
    assert result.f1 == 100
    assert result.all.tagging_accuracy == 80
    gold, parse = "(S (NP (NN a)))", "(X (Y (Z (NN a))))"
    assert brackets(gold, parse, EvalbParameters(labelled=False)) == (2, 2, 3)


def test_new_prm_deletes_more():
    new = EvalbParameters.new()
    gold = "(S1 (S (NP (NN a) (? ?)) (VP (VBZ b) (! !))))"
    parse = "(S (NP (NN a)) (? ?) (VP (VBZ b)) (! !))"
    assert brackets(gold, parse, new) == (3, 3, 3)
    assert brackets(gold, parse) == (1, 4, 3)
    assert new.delete_labels == ("TOP", "S1", "-NONE-", ",", ":", "``", "''", ".", "?", "!")


@pytest.mark.parametrize("tag", ["POS", "NN", "CD", "VBZ"])
def test_new_prm_keeps_a_quotation_mark_that_only_one_tree_deletes(tag):
    gold = "(S (NP (NN a) ('' ')) (VP (VBZ b)))"
    parse = f"(S (NP (NN a) ({tag} ')) (VP (VBZ b)))"
    for pair in ((gold, parse), (parse, gold)):
        assert status(*pair) == 1
        [sentence] = score(pair, parameters=EvalbParameters.new()).sentences
        assert (sentence.status, sentence.matched, sentence.words) == (0, 3, 3)
        assert sentence.correct_tags == 2
    # Not so another word, nor a tag that is none of those.
    assert (
        status(gold.replace(" ')", " x)"), parse.replace(" ')", " x)"), EvalbParameters.new()) == 1
    )
    assert status(gold, parse.replace(f"({tag} '", "(JJ '"), EvalbParameters.new()) == 1
    # Deleted from both, it is deleted.
    assert score((gold, gold), parameters=EvalbParameters.new()).sentences[0].words == 2


def test_a_parse_without_tags_is_judged_by_those_of_the_gold_tree():
    gold = "(S (NP (NN a) (-NONE- *)) (, ,) (VP (VBZ b)) (. .))"
    parse = "(S (NP (XX a) (XX ,)) (VP (XX b) (XX .)))"
    result = score((gold, parse))
    assert result.uses_gold_tags and "tags:gold" in result.signature
    assert result.f1 == 100
    # That the parse has no tags is not hidden.
    assert result.all.tagging_accuracy == 0
    # Tags that the parse has are its own.
    assert status(gold, parse.replace("XX b", ". b")) == 1
    # Other words, or another number of them, remain errors.
    assert status(gold, parse.replace("XX b", "XX c")) == 1
    assert status(gold, parse.replace(" (XX .)", "")) == 1


def test_the_parse_has_its_own_tags_otherwise():
    result = score((GOLD, GOLD))
    assert not result.uses_gold_tags and "tags:parse" in result.signature
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


@EXAMPLES
@given(pairs_of_trees())
def test_random_trees_are_counted_as_sets_of_words_are(pair):
    gold, parse = pair
    parameters = EvalbParameters()
    [sentence] = parseval([gold], [parse]).sentences
    words = [leaf for leaf in gold.leaves() if leaf[0] not in parameters.delete_labels]
    assert sentence.status == (0 if words else 2)
    gold_brackets, test_brackets = (reference_brackets(tree, parameters) for tree in pair)
    assert (sentence.gold_brackets, sentence.test_brackets) == (
        len(gold_brackets),
        len(test_brackets),
    )
    common = collections.Counter(gold_brackets) & collections.Counter(test_brackets)
    assert sentence.matched == common.total()
    assert sentence.crossing == sum(
        any(a & b and a - b and b - a for _, b in gold_brackets) for _, a in test_brackets
    )
    assert (sentence.words, sentence.correct_tags) == (len(words), len(words))


SUMMARY = """\
=== Summary ===

-- All --
Number of sentence        =      3
Number of Error sentence  =      1
Number of Skip  sentence  =      0
Number of Valid sentence  =      2
Bracketing Recall         =  90.91
Bracketing Precision      = 100.00
Bracketing FMeasure       =  95.24
Complete match            =  50.00
Average crossing          =   0.00
No crossing               = 100.00
2 or less crossing        = 100.00
Tagging accuracy          =  90.00

-- len<=40 --
"""


def test_the_summary_is_laid_out_as_evalb_does():
    gold = "(S (NP (NP (DT The) (NN dog))) (VP (VBZ chases) (NP (PRP$ its) (NP (NN tail)))) (. .))"
    parse = gold.replace("(NP (NN tail))", "(NN tail)").replace("DT", "NN")
    # 6 gold brackets and 5 of them in the parse; 5 words, 4 of them with the right tag.
    other = gold.replace("(NP (NN tail))", "(NN tail)")
    error = (gold, gold.replace("(. .)", "(NN x)"))
    result = score((gold, parse), (other, other), error)
    assert result.summary().startswith(SUMMARY)
    assert result.summary().count("Number of sentence        =      3") == 2
    assert result.summary().endswith("Tags for deletion         = the parse's own")
    assert str(result) == "F1 95.24 (COLLINS.prm|tags:parse|sentences:3|errors:1|skipped:0)"


def test_the_table_has_a_line_for_each_sentence():
    parse = "(S (NP (DT The)) (NN dog) (VP (VBZ chases) (PRP$ its) (NN tail)) (. .))"
    lines = score((GOLD, parse), (GOLD, None), (GOLD, "(NP (NN x))")).table().splitlines()
    assert lines[3:] == [
        "   1    6    0   50.00  66.67     2      4    3      0      5     5   100.00",
        "   2    6    2    0.00   0.00     0      0    0      0      0     0     0.00",
        "   3    6    1    0.00   0.00     0      0    0      0      0     0     0.00",
    ]


def test_the_figures_can_be_kept_as_json():
    result = score((GOLD, GOLD))
    kept = json.loads(json.dumps(result.to_dict()))
    assert kept["all"]["f1"] == 100 and kept["signature"] == result.signature


@pytest.mark.parametrize(
    "parameters, name",
    [
        (EvalbParameters(), "COLLINS.prm"),
        (EvalbParameters(cutoff_length=10), "COLLINS.prm"),
        (EvalbParameters.new(), "new.prm"),
        (EvalbParameters(delete_labels=("TOP",)), "own parameters"),
    ],
)
def test_the_signature_says_which_rules_were_used(parameters, name):
    assert score((GOLD, GOLD), parameters=parameters).signature.startswith(f"{name}|")


def test_nothing_to_score_or_lists_of_different_lengths_are_errors():
    tree = Tree.parse(GOLD)
    with pytest.raises(UserError, match="no trees"):
        parseval([], [])
    with pytest.raises(UserError, match="Received: 1 parses and 2 gold trees"):
        parseval([tree, tree], [tree])


def test_no_bracket_at_all_is_no_division_by_zero():
    result = score(("(TOP (NN a))", "(TOP (NN a))"), ("(TOP (NN a))", None))
    assert (result.f1, result.strict_f1, result.all.complete_match) == (0, 0, 100)


def test_a_treebank_scores_the_same_as_it_is_and_clean():
    raw = list(itertools.islice(read_trees(treebank_file("dev"), clean=False), 300))
    result = parseval(raw, map(clean_tree, raw))
    assert (result.all.num_errors, result.f1, result.all.complete_match) == (0, 100, 100)
    flat = [Tree("S", [Tree(*leaf) for leaf in clean_tree(tree).leaves()]) for tree in raw]
    assert parseval(raw, flat).all == parseval(map(clean_tree, raw), flat).all
