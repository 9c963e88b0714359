"""Lines, parameter files and quotation marks as the program EVALB handles them.

The files in `evalb/` are the sample that EVALB ships (rewritten), and 60 random lines of every kind
it accepts. `*.rsl` is the output of the C program.
"""

import pathlib

import pytest

from keras_transformer.errors import UserError
from keras_transformer.parsing import EvalbParameters, parseval

FOLDER = pathlib.Path(__file__).parent / "evalb"


def lines(name):
    return (FOLDER / name).read_text("utf-8").splitlines()


def file_of(tmp_path, text):
    path = tmp_path / "own.prm"
    path.write_text(text)
    return path


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
    ("( (NP (DT a) (NN dog)) )", 0, None),
    ("", 2, None),
    ("(NP (DT a) (NN dog)", 1, "too many open bracket"),
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
    ("(NP (DT a))) (VP (NN dog)", "0    0.00   0.00     0      1    2"),
    (")) (NP (NP (DT a) (NN dog)", "1    0.00   0.00     0      1    1"),
    ("(NP (DT a)) (NN dog)) (NP", "1  100.00  50.00     1      1    2"),
])  # fmt: skip
def test_rows_of_unbalanced_lines_are_those_of_evalb(line, row):
    """Its stack reaches below 0; only unequal numbers, or two at once, are an error."""
    score = parseval(["(NP (DT a) (NN dog))"], [line])
    assert score.table().splitlines()[-1] == f"   1    2    {row}      0      2     2   100.00"


@pytest.mark.parametrize("tag, word, restored", [
    ("POS", "'", True), ("NN", '"', True), ("VBZ", "/", True), ("POS", "''", False),
    ("JJ", "'", False),
])  # fmt: skip
def test_quotation_marks_are_restored_by_tag_and_word(tag, word, restored):
    """Length 3 against 2 without the mark; EVALB knows three words as marks."""
    gold = f"(S (NP (NN a) ('' {word})) (VP (VBZ b)))"
    parse = f"(S (NP (NN a) ({tag} {word})) (VP (VBZ b)))"
    for pair in ((gold, parse), (parse, gold)):
        [sentence] = parseval(*([text] for text in pair), EvalbParameters.new()).sentences
        assert (sentence.status, sentence.matched) == ((0, 3) if restored else (1, 0))


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


@pytest.mark.parametrize("name, deleted, quotes", [
    ("COLLINS.prm", "TOP -NONE- , : `` '' .", ""),
    ("new.prm", "TOP S1 -NONE- , : `` '' . ? !", "`` '' POS NN CD VBZ :"),
])  # fmt: skip
def test_a_file_with_known_parameters_is_named_in_the_signature(tmp_path, name, deleted, quotes):
    text = "EQ_LABEL ADVP PRT\nDELETE_LABEL_FOR_LENGTH -NONE-\nMAX_ERROR 10\nCUTOFF_LEN 10\n"
    text += "".join(f"DELETE_LABEL {label}\n" for label in deleted.split())
    text += "".join(f"QUOTE_LABEL {label}\n" for label in quotes.split())
    assert str(EvalbParameters.from_file(file_of(tmp_path, text))) == name


@pytest.mark.parametrize("line, message", [
    ("DELETE_LABLE TOP", "unknown keyword. Allowed: DELETE_LABEL,"),
    (" DELETE_LABEL TOP extra", "DELETE_LABEL takes a label"),
    ("EQ_LABEL ADVP", "EQ_LABEL takes two values"),
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
