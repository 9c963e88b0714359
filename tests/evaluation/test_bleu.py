"""BLEU, also the paper's, chrF and exact match: counted by hand, and by sacreBLEU's command."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest
from sacrebleu.metrics import BLEU

from keras_transformer.errors import UserError
from keras_transformer.evaluation import (
    Score,
    bleu_tokenizer,
    compare_systems,
    corpus_bleu,
    corpus_chrf,
    exact_match,
    paper_bleu,
)
from keras_transformer.evaluation.bleu import tokenize_for_paper, warn_without_spaces
from tests.closeness import assert_close

HYPOTHESES = ["the cat sat on the mat today", "there is one dog in our garden now"]
REFERENCES = ["the cat sat on a mat today", "there is a dog in our garden right now"]
OTHER_REFERENCES = ["today the cat sat on the mat", "one dog is in our garden now"]
GERMAN = ["Der Zug fährt um halb acht ab.", "Das kostet zwölf Euro, und mehr nicht!"]
GERMAN_REFERENCES = ["Der Zug fährt um halb neun ab.", "Es kostet zwölf Euro und nicht mehr!"]


def test_several_references_and_the_parts_of_the_score():
    """The parts are counted by hand: words, pairs, triples and fours that are in a reference."""
    score = corpus_bleu(HYPOTHESES, REFERENCES)
    assert_close(score.details["precisions"], 100 * np.array([13 / 15, 8 / 13, 4 / 11, 2 / 9]))
    assert (score.details["hypothesis_length"], score.details["reference_length"]) == (15, 16)
    several = corpus_bleu(HYPOTHESES, [REFERENCES, OTHER_REFERENCES])
    assert several.signature.startswith("nrefs:2|") and several.score > score.score


def test_score_and_signature_are_those_of_the_sacrebleu_command(tmp_path):
    (tmp_path / "hypothesis").write_text("\n".join(GERMAN) + "\n", encoding="utf-8")
    (tmp_path / "reference").write_text("\n".join(GERMAN_REFERENCES) + "\n", encoding="utf-8")
    command = [sys.executable, "-m", "sacrebleu", str(tmp_path / "reference")]
    command += ["-i", str(tmp_path / "hypothesis"), "-m", "bleu", "chrf", "--tokenize", "char"]
    command += ["-w", "6", "-lc", "--chrf-lowercase"]
    output = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    found = [
        corpus_bleu(GERMAN, GERMAN_REFERENCES, lowercase=True, tokenize="char"),
        corpus_chrf(GERMAN, GERMAN_REFERENCES, lowercase=True),
    ]
    for theirs, ours in zip(json.loads(output), found, strict=True):
        assert ours.score == pytest.approx(theirs["score"], abs=1e-5)
        assert ours.signature == theirs["signature"]


def test_the_comparison_of_two_systems_is_that_of_the_sacrebleu_command(tmp_path):
    """The table of the command has the scores with one decimal, and p with four.

    Its p counts samples that differ more than the systems do, in one direction.
    """
    files = {"reference": [*REFERENCES, *GERMAN_REFERENCES], "new": [*HYPOTHESES, *GERMAN]}
    files["old"] = [*OTHER_REFERENCES, *GERMAN]
    for name, lines in files.items():
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    command = [sys.executable, "-m", "sacrebleu", "reference", "-i", "old", "new", "--paired-bs"]
    command += ["-m", "bleu", "chrf", "--format", "text"]
    options = {"capture_output": True, "check": True, "text": True, "cwd": tmp_path}
    table = subprocess.run(command, **options).stdout
    found = compare_systems(files["new"], files["old"], files["reference"])
    # Those of the old and of the new system, by both metrics.
    scores = re.findall(r"(\d+\.\d) \(\d", table)[:4]
    assert [f"{s:.1f}" for s in [*(c.baseline for c in found), *(c.score for c in found)]] == scores
    assert [f"{c.p_value / 2:.4f}" for c in found] == re.findall(r"p = ([\d.]+)\)", table)
    assert all(c.signature in table for c in found)
    with pytest.raises(UserError, match="3 hypotheses and 4 references"):
        compare_systems(files["new"], files["old"][1:], files["reference"])


@pytest.mark.parametrize("language", ["de", "zh", "ja", "ko", None])
def test_the_tokenizer_of_a_language_is_sacrebleus(language):
    # Without MeCab, sacreBLEU takes 13a and warns.
    theirs = {"zh": "zh", "ja": "ja-mecab", "ko": "ko-mecab"}.get(language, "13a")
    assert bleu_tokenizer(language) == theirs == bleu_tokenizer(language and f"{language}_Abcd")
    if "mecab" not in theirs:
        assert BLEU(trg_lang=language or "").tokenizer.signature() == theirs


CHINESE = ["今天天气很好，我们去公园。", "他喜欢茶，不喜欢咖啡。"]
THAI = ["วันนี้อากาศดีมาก เราไปสวนกัน", "เขาชอบชา"]


@pytest.mark.parametrize("lines, tokenize, warns", [
    (CHINESE, "13a", True), (THAI, "13a", True), (CHINESE, "zh", False), (THAI, "char", False),
    (GERMAN, "13a", False), (["今日", *GERMAN], "13a", False), (["...", "42"], "13a", False),
])  # fmt: skip
def test_text_without_spaces_is_noticed(lines, tokenize, warns, caplog):
    warn_without_spaces(lines, tokenize, "give --target-language CODE")
    assert caplog.messages == warns * [
        "Words of the references have no spaces between them, so BLEU with the tokenizer 13a "
        "compares whole sentences: give --target-language CODE."
    ]


def test_exact_match_counts_sentences_that_equal_a_reference():
    hypotheses = ["eins", " Zwei ", "drei", "vier"]
    assert exact_match(hypotheses, ["eins", "zwei", "Drei", "fünf"], lowercase=True).score == 75.0
    score = exact_match(hypotheses, [["x", "x", "x", "x"], ["eins", "y", "drei", "vier"]])
    assert (score.score, score.signature) == (75.0, "nrefs:2|case:mixed")
    assert score.details == {"num_matches": 3, "num_sentences": 4}


def test_a_score_is_printed_with_its_signature_and_goes_into_json():
    score = corpus_bleu(HYPOTHESES, REFERENCES)
    assert str(score) == f"BLEU {score.score:.2f} ({score.signature})"
    assert Score(**json.loads(json.dumps(score.to_dict()))) == score


@pytest.mark.parametrize(("hypotheses", "references", "message"), [
    ([], [], "no hypotheses"),
    (["a"], [], "no references"),
    (["a", "b"], ["a"], "2 hypotheses and 1 references"),
    (["a", "b"], [["a", "b"], ["a"]], "2 hypotheses and 1 references of list 2"),
    (["a"], "a", "not one string"),
    (["a", None], ["a", "b"], "hypothesis must be a string.*line 2 = None"),
])  # fmt: skip
def test_what_cannot_be_scored_is_said_in_one_line(hypotheses, references, message):
    with pytest.raises(UserError, match=message):
        corpus_bleu(hypotheses, references)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        # The example of the Stanford NMT page that the convention goes back to.
        ("rich-text format", "rich ##AT##-##AT## text format"),
        # Perl's s///g goes on behind a match, so a part of one letter is split off on one side.
        ("a-b-c", "a ##AT##-##AT## b-c"),
        ("Vor- und Nachname - beides", "Vor- und Nachname - beides"),
        ("Am 3. Mai kam Dr. Weiß um 7.30 Uhr.", "Am 3. Mai kam Dr. Weiß um 7.30 Uhr ."),
        ("Ludwig XIV. Kam z.B. Hans? J. Doe", "Ludwig XIV. Kam z.B. Hans ? J. Doe"),
        ("„Größe“ – 5 % von 10 €", '" Größe " – 5 % von 10 €'),
        ("snake_case  and\ttabs", "snake _ case and tabs"),
    ],
)
def test_tokens_are_those_of_moses_with_split_compounds(text, tokens):
    assert tokenize_for_paper(text, "de") == tokens


@pytest.mark.parametrize("quotes", ["„“", "«»"])
def test_all_kinds_of_double_quotes_are_the_same(quotes):
    first, second = quotes
    typographic = [f"Er sagte: {first}Wir fahren morgen{second}."]
    plain = ['Er sagte: "Wir fahren morgen".']
    assert paper_bleu(typographic, plain).score == paper_bleu(plain, typographic).score == 100.0


def test_score_is_bleu_of_the_tokens_without_smoothing():
    hypothesis = ["Das Text-Format ist neu und sehr gut."]
    reference = ["Das Text-Datei-Format ist neu und gut."]
    # Tokens: das text ## format ist neu und sehr gut .  (10) against
    # das text ## datei ## format ist neu und gut .  (11), where ## stands for the split hyphen.
    precisions = np.array([9 / 10, 7 / 9, 4 / 8, 2 / 7])
    expected = 100 * np.exp(1 - 11 / 10) * np.exp(np.mean(np.log(precisions)))
    score = paper_bleu(hypothesis, reference)
    assert_close(score.details["precisions"], 100 * precisions, "float64")
    assert_close(score.score, expected, "float64")
    assert score.name == "BLEU (tokenized, compounds split)"
    assert "|tok:moses-de+atat|smooth:none|" in score.signature


def test_english_has_its_own_rules_and_no_compound_is_split():
    """In English, Moses writes isn 't; in German, isn ' t. The counts are made by hand."""
    hypothesis, reference = ["It isn't a well-known fact."], ["It isn't a well-known old fact."]
    # It isn 't a well-known fact .  (7) against  It isn 't a well-known old fact .  (8)
    precisions = np.array([7 / 7, 5 / 6, 3 / 5, 2 / 4])
    expected = 100 * np.exp(1 - 8 / 7) * np.exp(np.mean(np.log(precisions)))
    score = paper_bleu(hypothesis, reference, language="en")
    assert_close(score.details["precisions"], 100 * precisions, "float64")
    assert_close(score.score, expected, "float64")
    assert score.name == "BLEU (tokenized)" and "|tok:moses-en|" in score.signature
    assert paper_bleu(hypothesis, reference).score != pytest.approx(expected)
    with pytest.raises(UserError, match=r"one of de, en\. Received: language='fr'"):
        paper_bleu(hypothesis, reference, language="fr")
    with pytest.raises(UserError, match="tokenize must be one of .*13a.* tokenize='14a'"):
        corpus_bleu(hypothesis, reference, tokenize="14a")
