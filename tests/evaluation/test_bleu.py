"""BLEU, also the paper's, chrF and exact match: counted by hand, and by sacreBLEU's command."""

import collections
import json
import subprocess
import sys

import numpy as np
import pytest

from keras_transformer.errors import UserError
from keras_transformer.evaluation import Score, corpus_bleu, corpus_chrf, exact_match, paper_bleu
from keras_transformer.evaluation.bleu import tokenize_for_paper
from tests.closeness import assert_close

HYPOTHESES = ["the cat sat on the mat today", "there is one dog in our garden now"]
REFERENCES = ["the cat sat on a mat today", "there is a dog in our garden right now"]
OTHER_REFERENCES = ["today the cat sat on the mat", "one dog is in our garden now"]
GERMAN = ["Der Zug fährt um halb acht ab.", "Das kostet zwölf Euro, und mehr nicht!"]
GERMAN_REFERENCES = ["Der Zug fährt um halb neun ab.", "Es kostet zwölf Euro und nicht mehr!"]


def bleu_by_hand(hypotheses, streams):
    """Papineni et al. (2002), equations 1 to 3, on text whose tokens are its words."""

    def ngrams(words, order):
        return collections.Counter(
            tuple(words[i : i + order]) for i in range(len(words) + 1 - order)
        )

    correct, total = np.zeros(4), np.zeros(4)
    hypothesis_length = reference_length = 0
    for hypothesis, *references in zip(hypotheses, *streams, strict=True):
        words = hypothesis.split()
        references = [reference.split() for reference in references]
        hypothesis_length += len(words)
        # The reference whose length is nearest, the shorter one of two.
        reference_length += min((abs(len(r) - len(words)), len(r)) for r in references)[1]
        for order in range(1, 5):
            allowed = collections.Counter()
            for reference in references:
                allowed |= ngrams(reference, order)
            found = ngrams(words, order)
            correct[order - 1] += (found & allowed).total()
            total[order - 1] += found.total()
    brevity_penalty = min(1.0, np.exp(1 - reference_length / hypothesis_length))
    return 100 * brevity_penalty * np.exp(np.mean(np.log(correct / total))), correct / total


def test_two_sentences_equal_the_computation_by_hand():
    expected, precisions = bleu_by_hand(HYPOTHESES, [REFERENCES])
    score = corpus_bleu(HYPOTHESES, REFERENCES)
    # Counted by eye: so many words, pairs, triples and fours are in the reference.
    assert_close(precisions, [13 / 15, 8 / 13, 4 / 11, 2 / 9], "float64")
    assert_close(score.details["precisions"], 100 * precisions, "float64")
    assert_close(score.score, expected, "float64")
    assert (score.details["hypothesis_length"], score.details["reference_length"]) == (15, 16)
    assert_close(score.details["brevity_penalty"], np.exp(1 - 16 / 15), "float64")


def test_several_references_equal_the_computation_by_hand():
    streams = [REFERENCES, OTHER_REFERENCES]
    expected, _ = bleu_by_hand(HYPOTHESES, streams)
    score = corpus_bleu(HYPOTHESES, streams)
    assert_close(score.score, expected, "float64")
    assert score.signature.startswith("nrefs:2|")
    assert score.score > corpus_bleu(HYPOTHESES, REFERENCES).score


# Each is a process of its own.
@pytest.mark.parametrize("tokenize, lowercase", [
    ("char", True), pytest.param("13a", False, marks=pytest.mark.slow),
])  # fmt: skip
def test_score_and_signature_are_those_of_the_sacrebleu_command(tmp_path, tokenize, lowercase):
    (tmp_path / "hypothesis").write_text("\n".join(GERMAN) + "\n", encoding="utf-8")
    (tmp_path / "reference").write_text("\n".join(GERMAN_REFERENCES) + "\n", encoding="utf-8")
    command = [sys.executable, "-m", "sacrebleu", str(tmp_path / "reference")]
    command += ["-i", str(tmp_path / "hypothesis"), "-m", "bleu", "chrf", "--tokenize", tokenize]
    command += ["-w", "6"] + (["-lc", "--chrf-lowercase"] if lowercase else [])
    output = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    found = [
        corpus_bleu(GERMAN, GERMAN_REFERENCES, lowercase=lowercase, tokenize=tokenize),
        corpus_chrf(GERMAN, GERMAN_REFERENCES, lowercase=lowercase),
    ]
    for theirs, ours in zip(json.loads(output), found, strict=True):
        assert ours.score == pytest.approx(theirs["score"], abs=1e-5)
        assert ours.signature == theirs["signature"]


def test_a_perfect_translation_scores_exactly_100():
    for score in (corpus_bleu, corpus_chrf, exact_match):
        assert score(GERMAN, GERMAN).score == 100.0
        assert score(GERMAN, [GERMAN]) == score(GERMAN, GERMAN)


def test_chrf_plus_plus_has_its_name():
    score = corpus_chrf(GERMAN, GERMAN_REFERENCES, word_order=2)
    assert score.name == "chrF++"
    assert "nw:2" in score.signature


def test_exact_match_counts_sentences_that_equal_a_reference():
    hypotheses = ["eins", " Zwei ", "drei", "vier"]
    assert exact_match(hypotheses, ["eins", "Zwei", "Drei", "fünf"]).score == 50.0
    assert exact_match(hypotheses, ["eins", "zwei", "Drei", "fünf"], lowercase=True).score == 75.0
    score = exact_match(hypotheses, [["x", "x", "x", "x"], ["eins", "y", "drei", "vier"]])
    assert (score.score, score.signature) == (75.0, "nrefs:2|case:mixed")
    assert score.details == {"num_matches": 3, "num_sentences": 4}


def test_a_score_is_printed_with_its_signature_and_goes_into_json():
    score = corpus_bleu(HYPOTHESES, REFERENCES)
    assert str(score) == f"BLEU {score.score:.2f} ({score.signature})"
    assert Score(**json.loads(json.dumps(score.to_dict()))) == score


@pytest.mark.parametrize("score", [corpus_bleu, exact_match])
@pytest.mark.parametrize(("hypotheses", "references", "message"), [
    ([], [], "no hypotheses"),
    (["a"], [], "no references"),
    (["a", "b"], ["a"], "2 hypotheses and 1 references"),
    (["a", "b"], [["a", "b"], ["a"]], "2 hypotheses and 1 references of list 2"),
    ("a", ["a"], "not one string"),
    (["a"], "a", "not one string"),
    (["a", None], ["a", "b"], "hypothesis must be a string.*line 2 = None"),
    (["a", "b"], [["a", 3]], "reference must be a string.*line 2 = 3"),
])  # fmt: skip
def test_what_cannot_be_scored_is_said_in_one_line(score, hypotheses, references, message):
    with pytest.raises(UserError, match=message) as error:
        score(hypotheses, references)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        # The example of the Stanford NMT page that the convention goes back to.
        ("rich-text format", "rich ##AT##-##AT## text format"),
        ("E-Mail-Format", "E ##AT##-##AT## Mail ##AT##-##AT## Format"),
        # Perl's s///g goes on behind a match, so a part of one letter is split off on one side.
        ("a-b-c", "a ##AT##-##AT## b-c"),
        ("Vor- und Nachname - beides", "Vor- und Nachname - beides"),
    ],
)
def test_compounds_are_split_as_in_the_original(text, tokens):
    assert tokenize_for_paper(text, "de") == tokens


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ('Er sagte: "Ja!" (leise).', 'Er sagte : " Ja ! " ( leise ) .'),
        ("1,5 Millionen, also 1.500.000, nicht 3,", "1,5 Millionen , also 1.500.000 , nicht 3 ,"),
        ("Am 3. Mai kam Dr. Weiß um 7.30 Uhr.", "Am 3. Mai kam Dr. Weiß um 7.30 Uhr ."),
        ("Ludwig XIV. Kam z.B. Hans? J. Doe", "Ludwig XIV. Kam z.B. Hans ? J. Doe"),
        ("Ende. Anfang", "Ende . Anfang"),
        ("Das ist d. h. so usw. und so", "Das ist d. h. so usw. und so"),
        ("Nun ... ja...nein..", "Nun ... ja ... nein .."),
        ("Hans' Haus, wie geht's?", "Hans ' Haus , wie geht ' s ?"),
        ("„Größe“ – 5 % von 10 €", '" Größe " – 5 % von 10 €'),
        ("snake_case  and\ttabs", "snake _ case and tabs"),
        ("", ""),
    ],
)
def test_tokens_are_those_of_moses(text, tokens):
    assert tokenize_for_paper(text, "de") == tokens


@pytest.mark.parametrize("quotes", ["„“", "“”", "«»"])
def test_all_kinds_of_double_quotes_are_the_same(quotes):
    first, second = quotes
    typographic = [f"Er sagte: {first}Wir fahren morgen{second}."]
    plain = ['Er sagte: "Wir fahren morgen".']
    assert paper_bleu(typographic, plain).score == paper_bleu(plain, typographic).score == 100.0
    # What an apostrophe can be stays.
    assert tokenize_for_paper("So ist’s", "de") == "So ist ’ s"


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


def test_no_common_four_words_give_zero():
    assert paper_bleu(["Das ist ganz neu"], ["Das ist sehr neu"]).score == 0.0
    assert corpus_bleu(["Das ist ganz neu"], ["Das ist sehr neu"]).score > 0.0


def test_it_cannot_be_mistaken_for_sacrebleu():
    score = paper_bleu(["Ein Text-Format."], ["Ein Text-Format."], lowercase=True)
    assert score.name == "BLEU (tokenized, compounds split)"
    assert "|case:lc|" in score.signature
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
