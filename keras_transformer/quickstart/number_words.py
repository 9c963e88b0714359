"""The words of the number corpus, and numbers, dates, times and money as (English, German) pairs.

The vocabulary is in `number_corpus.toml`, with the patterns of the sentences.
"""

import functools
from typing import NamedTuple

from keras_transformer.files import read_toml

_CONTENT = read_toml(__file__, "number_corpus.toml")


class Noun(NamedTuple):
    """A noun that can be counted, in both languages."""

    english: str
    english_plural: str
    german: str
    german_plural: str
    gender: str


class Currency(NamedTuple):
    """A currency and its coin of a hundredth, which is None if it is not in use."""

    unit: Noun
    hundredth: Noun | None = None


NOUNS = tuple(Noun(*noun.split()) for noun in _CONTENT["nouns"])
YEAR = Noun("year", "years", "Jahr", "Jahre", "n")
CURRENCIES = tuple(
    Currency(*(Noun(*noun.split()) for noun in nouns)) for nouns in _CONTENT["currencies"]
)
SUBJECTS, VERBS = _CONTENT["subjects"], _CONTENT["verbs"]
CHOICES = {slot: tuple(pairs.items()) for slot, pairs in _CONTENT["choices"].items()}
CHOICES["past_day"] += tuple((f"on {day}", f"am {tag}") for day, tag in CHOICES["weekday"])
# Weight and patterns of each family.
FAMILIES = tuple(
    (family["weight"], tuple(family["patterns"].items()))
    for family in _CONTENT["families"].values()
)
# (English, German, days) of each month; February has 28, so that dates are valid in any year.
_DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
MONTHS = tuple((*names, days) for names, days in zip(CHOICES["month"], _DAYS, strict=True))


def _declined(**forms):
    """Returns German forms by (gender, case); values list nominative, accusative and dative."""
    return {
        (gender, case): form
        for gender, of_gender in forms.items()
        for case, form in zip(("nom", "acc", "dat"), of_gender.split(), strict=True)
    }


INDEFINITE = _declined(m="ein einen einem", f="eine eine einer", n="ein ein einem")
DEFINITE = _declined(m="der den dem", f="die die der", n="das das dem")


@functools.cache
def _spell(number, language, form):
    # The package must import without num2words, which only this corpus needs.
    from num2words import num2words

    # A comma after the thousands ("one thousand, two hundred") would read as a list.
    return num2words(number, lang=language, to=form).replace(",", "")


def cardinal(number):
    """Returns a number on its own: 21 -> ("twenty-one", "einundzwanzig")."""
    return _spell(number, "en", "cardinal"), _spell(number, "de", "cardinal")


def year(number):
    """Returns a year: 1984 -> ("nineteen eighty-four", "neunzehnhundertvierundachtzig")."""
    return _spell(number, "en", "year"), _spell(number, "de", "year")


def ordinal(number, ending=""):
    """Returns an ordinal; `ending` declines the German one: (3, "n") -> ("third", "dritten")."""
    return _spell(number, "en", "ordinal"), _spell(number, "de", "ordinal") + ending


def counted(number, noun, case):
    """Returns a number of things: (1, chair, "acc") -> ("one chair", "einen Stuhl")."""
    english, german = cardinal(number)
    if number == 1:
        return f"{english} {noun.english}", f"{INDEFINITE[noun.gender, case]} {noun.german}"
    return f"{english} {noun.english_plural}", f"{german} {noun.german_plural}"


def definite(noun, case):
    """Returns the thing: (chair, "acc") -> ("the chair", "den Stuhl")."""
    return f"the {noun.english}", f"{DEFINITE[noun.gender, case]} {noun.german}"


def ordinal_noun(number, noun, case):
    """Returns the n-th thing: (3, chair, "acc") -> ("the third chair", "den dritten Stuhl")."""
    # After a definite article the adjective ends in -e, in the dative and the masculine
    # accusative in -en.
    ending = "n" if case == "dat" or (noun.gender, case) == ("m", "acc") else ""
    english, german = ordinal(number, ending)
    article = DEFINITE[noun.gender, case]
    return f"the {english} {noun.english}", f"{article} {german} {noun.german}"


def day_of_month(day, month, ending="n"):
    """Returns a day and its month (1 to 12): (3, 5) -> ("third of May", "dritten Mai")."""
    english, german = ordinal(day, ending)
    english_month, german_month, _ = MONTHS[month - 1]
    return f"{english} of {english_month}", f"{german} {german_month}"


def clock_time(hour, minute):
    """Returns a time in conversation: (7, 25) -> ("twenty-five past seven", "fünf vor halb acht").

    From 25 to 35 minutes past, German names the half hour by the next hour and counts from it.
    """
    english, german = cardinal(hour)
    next_english, next_german = cardinal(hour % 12 + 1)
    if minute == 0:
        return f"{english} o'clock", f"{_before_uhr(hour)} Uhr"
    if minute == 30:
        return f"half past {english}", f"halb {next_german}"
    quarter, minutes = ("a quarter", "Viertel"), min(minute, 60 - minute)
    distance, german_distance = quarter if minutes == 15 else cardinal(minutes)
    times = (f"{distance} past {english}", f"{german_distance} nach {german}")
    if minute > 30:
        times = (f"{distance} to {next_english}", f"{german_distance} vor {next_german}")
    if minute in (25, 35):
        times = (times[0], f"fünf {'vor' if minute == 25 else 'nach'} halb {next_german}")
    return times


def timetable_time(hour, minute):
    """Returns a time as in timetables: (7, 5) -> ("seven oh five", "sieben Uhr fünf")."""
    english_minute, german_minute = cardinal(minute)
    if minute < 10:
        english_minute = f"oh {english_minute}"
    return f"{cardinal(hour)[0]} {english_minute}", f"{_before_uhr(hour)} Uhr {german_minute}"


def money(units, hundredths, currency, case):
    """Returns an amount without parts that are 0: (2, 0, euro) -> ("two euros", "zwei Euro")."""
    amounts = ((units, currency.unit), (hundredths, currency.hundredth))
    parts = (counted(number, noun, case) for number, noun in amounts if number)
    english, german = zip(*parts, strict=True)
    return " and ".join(english), " und ".join(german)


def _before_uhr(hour):
    return "ein" if hour == 1 else cardinal(hour)[1]
