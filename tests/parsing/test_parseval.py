"""EVALB's figures: those of the C program, and its rules counted by hand.

The files in `evalb/` are the sample that EVALB ships (rewritten), and 60 random lines of every kind
it accepts. `*.rsl` is the output of the C program.
"""

import json
import pathlib

import pytest

from keras_transformer.errors import UserError
from keras_transformer.parsing import EvalbParameters, Tree, parseval

FOLDER = pathlib.Path(__file__).parent / "evalb"
GOLD = "(S (NP (DT The) (NN dog)) (VP (VBZ chases) (NP (PRP$ its) (NN tail))) (. .))"
FLAT = "(S (NP (DT The)) (NN dog) (VP (VBZ chases) (PRP$ its) (NN tail)) (. .))"
PARTICLES = "(VP (VB a) (PRT (RP b)) (ADVP (RB c)) (ADVP (RB d)))"
QUESTION = "(S1 (S (NP (NN a) (? ?)) (VP (VBZ b) (! !))))"
NEW = EvalbParameters.new()
SPANS = EvalbParameters(labelled=False)


def lines(name):
    return (FOLDER / name).read_text("utf-8").splitlines()


@pytest.mark.parametrize("name", ["sample", "random"])
def test_every_row_and_figure_is_evalbs(name):
    parameters = EvalbParameters.from_file(FOLDER / f"{name}.prm")
    score = parseval(lines(f"{name}.gld"), lines(f"{name}.tst"), parameters)
    expected = lines(f"{name}.rsl")
    rows = score.table().splitlines()
    assert rows == expected[: len(rows)] and expected[len(rows)] == "=" * 76
    summary = expected.index("=== Summary ===")
    assert score.summary().split("\n\n-- Not of EVALB")[0].splitlines() == expected[summary:]


@pytest.mark.parametrize("line, status, error", [
    ("(NP (DT a)) (VP (NN dog))", 0, None),
    ("", 2, None),
    ("(NP (DT a) (NN dog)))", 1, "too many close bracket"),
    ("(NP (DT a) (NN dog cat))", 1, "More than two elements"),
    ("a dog", 2, "More than two elements"),
])  # fmt: skip
def test_a_line_may_be_anything(line, status, error):
    [sentence] = parseval(["(NP (DT a) (NN dog))"], [line]).sentences
    assert sentence.status == status
    assert error is None and not sentence.errors or error in sentence.errors[0]


@pytest.mark.parametrize("line, row", [
    (")(NP (DT a) (NN dog)", "0    0.00   0.00     0      1    0"),
    ("(NP (DT a)) (NN dog)) (NP", "1  100.00  50.00     1      1    2"),
])  # fmt: skip
def test_rows_of_unbalanced_lines_are_those_of_evalb(line, row):
    """Its stack reaches below 0; only unequal numbers, or two at once, are an error."""
    score = parseval(["(NP (DT a) (NN dog))"], [line])
    assert score.table().splitlines()[-1] == f"   1    2    {row}      0      2     2   100.00"


def score(*pairs, parameters=None):
    """The score of pairs of bracketed texts, gold and parse; None is no tree."""
    gold, parses = (
        [text and Tree.parse(text) for text in side] for side in zip(*pairs, strict=True)
    )
    return parseval(gold, parses, parameters)


def one_sentence(gold, parse, parameters=None):
    [sentence] = score((gold, parse), parameters=parameters).sentences
    return sentence


@pytest.mark.parametrize("gold, parse, parameters, expected", [
    # Brackets are constituents and not tags; each needs its label and its span.
    (GOLD, GOLD.replace("NP (PRP$", "PP (PRP$"), None, (3, 4, 4)),
    (GOLD, FLAT, None, (2, 4, 3)),
    # Constituents that deletion leaves empty do not count.
    ("(S (NP (-NONE- *)) (PRN (X (: -) (, ,))) (VP (VB Go)))", "(S (VP (VB Go)))", None, (2, 2, 2)),
    # Function tags and indices.
    ("(S-IMP (NP-SBJ-1 (NN a)) (PP=2 (IN b)) (VP-X=3 (VB c)))",
     "(S (NP-LGS (NN a)) (PP (IN b)) (VP=1-Y (VB c)))", None, (4, 4, 4)),
    # ADVP and PRT are the same.
    (PARTICLES, "(VP (VB a) (ADVP (RP b)) (PRT (RB c)) (ADJP (RB d)))", None, (3, 4, 4)),
    # A root without a label counts as TOP.
    (f"( {GOLD})", GOLD, None, (4, 4, 4)),
    # Punctuation does not count, other symbols do.
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


@pytest.mark.parametrize("tag, word, restored", [
    ("POS", "'", True), ("VBZ", "/", True), ("POS", "''", False), ("JJ", "'", False),
])  # fmt: skip
def test_quotation_marks_are_restored_by_tag_and_word(tag, word, restored):
    """Length 3 against 2 without the mark; EVALB knows three words as marks."""
    gold = f"(S (NP (NN a) ('' {word})) (VP (VBZ b)))"
    parse = f"(S (NP (NN a) ({tag} {word})) (VP (VBZ b)))"
    for pair in ((gold, parse), (parse, gold)):
        [sentence] = parseval(*([text] for text in pair), EvalbParameters.new()).sentences
        assert (sentence.status, sentence.matched) == ((0, 3) if restored else (1, 0))


@pytest.mark.parametrize("parse", [
    "(S (NP (DT The) (NN dog)) (VP (VBZ chases) (NP (NN tail))) (. .))",  # One is missing.
    # A word that counts in one tree and is deleted from the other, by its tags there.
    GOLD.replace("(. .)", "(SYM .)"),
])  # fmt: skip
def test_a_sentence_whose_words_differ_is_an_error_and_left_out(parse):
    assert one_sentence(GOLD, parse).status == 1
    result = score((GOLD, parse), ("(NP (NN a))", "(NP (NN a))")).all
    assert (result.num_errors, result.num_skipped, result.num_valid) == (1, 0, 1)
    assert (result.f1, result.complete_match, result.tagging_accuracy) == (100, 100, 100)


@pytest.mark.parametrize("gold, parse, status", [
    (GOLD, None, 2), (GOLD, "(S (. .))", 2), (None, None, 2),
    # Not so a gold tree without words.
    (None, GOLD, 1),
])  # fmt: skip
def test_a_parse_without_words_is_skipped_and_left_out(gold, parse, status):
    assert one_sentence(gold, parse).status == status


def test_a_parse_without_tags_is_judged_by_those_of_the_gold_tree():
    gold = "(S (NP (NN a) (-NONE- *)) (, ,) (VP (VBZ b)) (. .))"
    parse = "(S (NP (XX a) (XX ,)) (VP (XX b) (XX .)))"
    result = score((gold, parse))
    assert result.uses_gold_tags and "tags:gold" in result.signature
    assert result.summary().endswith("Tags for deletion         = the gold tree's")
    # That the parse has no tags is not hidden.
    assert (result.f1, result.all.tagging_accuracy) == (100, 0)
    # Tags that the parse has are its own.
    assert one_sentence(gold, parse.replace("XX b", ". b")).status == 1
    # Another number of words remains an error.
    assert one_sentence(gold, parse.replace(" (XX .)", "")).status == 1


def test_the_summary_and_the_dict_have_what_evalb_does_not_print():
    result = score((GOLD, GOLD), (GOLD, None), (GOLD, "(NP (NN x))"))
    assert str(result) == "F1 100.00 (COLLINS.prm|tags:parse|sentences:3|errors:1|skipped:1)"
    assert "F1, errors count as 0     =  47.06\n" in result.summary()  # 2 * 4 / (12 + 5)
    kept = json.loads(json.dumps(result.to_dict()))
    assert kept["all"]["f1"] == 100 and kept["signature"] == result.signature


def test_nothing_to_score_or_lists_of_different_lengths_are_errors():
    tree = Tree.parse(GOLD)
    with pytest.raises(UserError, match="no trees"):
        parseval([], [])
    with pytest.raises(UserError, match="Received: 1 parses and 2 gold trees"):
        parseval([tree, tree], [tree])


def file_of(tmp_path, text):
    path = tmp_path / "own.prm"
    path.write_text(text)
    return path


def test_every_keyword_is_read_and_evalbs_defaults_are_kept(tmp_path):
    assert EvalbParameters.from_file(file_of(tmp_path, "# only a comment\n\n")) == EvalbParameters(
        delete_labels=(), delete_labels_for_length=(), equal_labels=(), max_errors=10
    )
    text = (
        "DEBUG 1\nMAX_ERROR 3\nCUTOFF_LEN\t70\nLABELED 0  \nDELETE_LABEL TOP\nDELETE_LABEL #\n"
        "DELETE_LABEL_FOR_LENGTH -NONE-\nQUOTE_LABEL POS\nEQ_LABEL ADVP PRT\nEQ_LABEL T TT\n"
        "EQ_WORD  This this\n"
    )
    assert EvalbParameters.from_file(file_of(tmp_path, text)) == EvalbParameters(
        delete_labels=("TOP", "#"),
        delete_labels_for_length=("-NONE-",),
        equal_labels=(("ADVP", "PRT"), ("T", "TT")),
        quote_labels=("POS",),
        cutoff_length=70,
        labelled=False,
        equal_words=(("This", "this"),),
        max_errors=3,
    )


@pytest.mark.parametrize("line, message", [
    ("DELETE_LABLE TOP", "unknown keyword. Allowed: DELETE_LABEL,"),
    (" DELETE_LABEL TOP extra", "DELETE_LABEL takes a label"),
    ("MAX_ERROR ten", "MAX_ERROR takes a whole number"),
])  # fmt: skip
def test_a_mistake_in_a_file_is_named_with_its_line(tmp_path, line, message):
    with pytest.raises(UserError) as raised:
        EvalbParameters.from_file(file_of(tmp_path, f"LABELED 1\n{line}\n"))
    assert f"own.prm', line 2: {message}" in str(raised.value)
    assert "Received: " in str(raised.value)


def test_too_many_errors_stop_as_evalb_does():
    """The C program compares before it counts: with MAX_ERROR 1 the third error ends it."""
    gold, parses = ["(NP (NN a))"] * 3, ["(NP (NN b))"] * 3
    parameters = EvalbParameters(max_errors=1)
    assert parseval(gold[:2], parses[:2], parameters).all.num_errors == 2
    with pytest.raises(UserError, match=r"sentence 1: Words unmatch \(a\|b\).*MAX_ERROR 1"):
        parseval(gold, parses, parameters)
    assert parseval(gold, parses).all.num_errors == 3
