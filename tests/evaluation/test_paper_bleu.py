"""The paper's BLEU: tokenized as by Moses, compounds split, no smoothing, and labeled."""

import gzip
import os
import pathlib
import re

import numpy as np
import pytest

from keras_transformer.errors import UserError
from keras_transformer.evaluation import corpus_bleu, paper_bleu
from keras_transformer.evaluation.bleu import tokenize_for_paper


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


@pytest.mark.parametrize("quotes", ["„“", "“”", "«»", "»«", "„”"])
def test_all_kinds_of_double_quotes_are_the_same(quotes):
    first, second = quotes
    typographic = [f"Er sagte: {first}Wir fahren morgen{second}."]
    plain = ['Er sagte: "Wir fahren morgen".']
    assert paper_bleu(typographic, plain).score == paper_bleu(plain, typographic).score == 100.0
    # What an apostrophe can be stays.
    assert tokenize_for_paper("So ist’s", "de") == "So ist ’ s"


def test_newstest2014_scores_the_same_with_either_quotes():
    """The reference with the quotes of its authors, and with those of tensor2tensor's file."""
    path = pathlib.Path(os.environ.get("KERAS_TRANSFORMER_DATA", ""), "wmt/newstest2014.deu.gz")
    if not path.is_file():
        pytest.skip("needs WMT: set KERAS_TRANSFORMER_DATA to a folder that holds wmt/")
    with gzip.open(path, "rt", encoding="utf-8") as file:
        lines = file.read().splitlines()[:800]
    plain = [re.sub("[„“]", '"', line) for line in lines]
    num_changed = sum(one != other for one, other in zip(lines, plain, strict=True))
    assert num_changed > 20
    hypotheses = [line.replace("nicht", "kaum") for line in lines]  # not 100, which would hide much
    plain_hypotheses = [re.sub("[„“]", '"', line) for line in hypotheses]
    pairs = (hypotheses, lines), (hypotheses, plain), (plain_hypotheses, lines)
    scores = {paper_bleu(*pair).score for pair in pairs}
    assert len(scores) == 1 and 90 < scores.pop() < 100


def test_score_is_bleu_of_the_tokens_without_smoothing():
    hypothesis = ["Das Text-Format ist neu und sehr gut."]
    reference = ["Das Text-Datei-Format ist neu und gut."]
    # Tokens: das text ## format ist neu und sehr gut .  (10) against
    # das text ## datei ## format ist neu und gut .  (11), where ## stands for the split hyphen.
    precisions = np.array([9 / 10, 7 / 9, 4 / 8, 2 / 7])
    expected = 100 * np.exp(1 - 11 / 10) * np.exp(np.mean(np.log(precisions)))
    score = paper_bleu(hypothesis, reference)
    np.testing.assert_allclose(score.details["precisions"], 100 * precisions)
    np.testing.assert_allclose(score.score, expected)


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
    np.testing.assert_allclose(score.details["precisions"], 100 * precisions)
    np.testing.assert_allclose(score.score, expected)
    assert score.name == "BLEU (tokenized)" and "|tok:moses-en|" in score.signature
    assert paper_bleu(hypothesis, reference).score != pytest.approx(expected)
    with pytest.raises(UserError, match=r"one of de, en\. Received: language='fr'"):
        paper_bleu(hypothesis, reference, language="fr")


def test_several_references_are_used():
    hypotheses = ["Der Zug fährt um acht Uhr ab."]
    first, second = ["Der Bus fährt um neun Uhr los."], hypotheses
    assert paper_bleu(hypotheses, [first, second]).score == 100.0
