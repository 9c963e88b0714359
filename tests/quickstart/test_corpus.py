"""The number corpus: reproducible, held out, and in correct English and German."""

import re

import pytest

from keras_transformer.quickstart import corpus as words
from keras_transformer.quickstart.corpus import (
    CURRENCIES,
    NOUNS,
    number_corpus,
)

EURO, _, _, FRANC, CROWN = CURRENCIES
NOUN = {noun.english: noun for noun in NOUNS}


@pytest.fixture(scope="module")
def corpus():
    return number_corpus(seed=0)


def test_the_seed_gives_the_test_pairs_whatever_the_size_of_the_training_set(corpus):
    train, valid, test = number_corpus(seed=0, num_train=50)
    assert (valid, test) == corpus[1:]
    assert train == corpus[0][:50]
    assert number_corpus(seed=1, num_train=0, num_valid=0)[2] != test


def test_nothing_held_out_is_in_another_part(corpus):
    for side in (0, 1):
        parts = [{pair[side] for pair in part} for part in corpus]
        assert [len(part) for part in parts] == [20_000, 300, 300]  # the default sizes
        assert len(set.union(*parts)) == 20_600


def test_sentences_are_short_and_well_formed(corpus):
    pairs = corpus[0]
    lengths = [len(source.split()) for source, _ in pairs]
    assert sum(length > 15 for length in lengths) < 0.02 * len(pairs)
    assert max(lengths) <= 30
    for source, target in pairs:
        assert source.endswith(".") == target.endswith(".")
        # A sentence opens with a capital, a phrase in lower case ("der dritte Baum").
        assert source[0].isupper() == source.endswith(".")
        assert target[0].isupper() == (source.endswith(".") or target.startswith("Viertel"))
        assert re.fullmatch(r"[A-Za-z',. \-]+", source), source
        assert re.fullmatch(r"[A-Za-zÄÖÜäöüß,. ]+", target), target
        assert "  " not in source + target


@pytest.mark.parametrize("number", [-1, "20"])
def test_impossible_sizes_are_refused(number):
    with pytest.raises(ValueError, match="num_test must be .* Received: num_test="):
        number_corpus(num_test=number)


# Written by hand, not taken from the generator.
@pytest.mark.parametrize("hour, minute, english, german", [
    (1, 0, "one o'clock", "ein Uhr"),
    (1, 5, "five past one", "fünf nach eins"),
    (7, 25, "twenty-five past seven", "fünf vor halb acht"),
    (7, 30, "half past seven", "halb acht"),
    (12, 35, "twenty-five to one", "fünf nach halb eins"),
    (8, 45, "a quarter to nine", "Viertel vor neun"),
])  # fmt: skip
def test_conversational_times(hour, minute, english, german):
    assert words.clock_time(hour, minute) == (english, german)


@pytest.mark.parametrize("function, arguments, english, german", [
    (words.cardinal, [1], "one", "eins"),
    (words.cardinal, [116], "one hundred and sixteen", "einhundertsechzehn"),
    (words.cardinal, [2345], "two thousand three hundred and forty-five",
     "zweitausenddreihundertfünfundvierzig"),
    (words.year, [1905], "nineteen oh-five", "neunzehnhundertfünf"),
    (words.year, [2024], "twenty twenty-four", "zweitausendvierundzwanzig"),
    (words.day_of_month, [3, 5, "n"], "third of May", "dritten Mai"),
    (words.day_of_month, [31, 12, "n"], "thirty-first of December", "einunddreißigsten Dezember"),
    (words.money, [12, 50, EURO, "acc"], "twelve euros and fifty cents",
     "zwölf Euro und fünfzig Cent"),
    (words.money, [1, 1, EURO, "acc"], "one euro and one cent", "einen Euro und einen Cent"),
    (words.money, [1, 0, EURO, "dat"], "one euro", "einem Euro"),
    (words.money, [1, 0, FRANC, "acc"], "one franc", "einen Franken"),
    (words.money, [1, 0, CROWN, "dat"], "one crown", "einer Krone"),
])  # fmt: skip
def test_numbers_dates_and_money(function, arguments, english, german):
    assert function(*arguments) == (english, german)


@pytest.mark.parametrize("noun, forms", [
    ("chair", ["der dritte Stuhl", "den dritten Stuhl", "dem dritten Stuhl"]),
    ("lamp", ["die dritte Lampe", "die dritte Lampe", "der dritten Lampe"]),
    ("book", ["das dritte Buch", "das dritte Buch", "dem dritten Buch"]),
])  # fmt: skip
def test_ordinals_are_declined(noun, forms):
    for case, german in zip(("nom", "acc", "dat"), forms, strict=True):
        assert words.ordinal_noun(3, NOUN[noun], case) == (f"the third {noun}", german)
