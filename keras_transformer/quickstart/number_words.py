"""Numbers, dates, clock times and money in words, each as an (English, German) pair of phrases.

The words of plain numbers come from num2words; what a number does to the words around it
(agreement, declension, the German way to tell the time) is decided here.
"""

import functools

from keras_transformer.quickstart.vocabulary import MONTHS

# German forms by (gender, case); the cases are nominative, accusative and dative.
INDEFINITE = {
    ("m", "nom"): "ein",
    ("m", "acc"): "einen",
    ("m", "dat"): "einem",
    ("f", "nom"): "eine",
    ("f", "acc"): "eine",
    ("f", "dat"): "einer",
    ("n", "nom"): "ein",
    ("n", "acc"): "ein",
    ("n", "dat"): "einem",
}
DEFINITE = {
    ("m", "nom"): "der",
    ("m", "acc"): "den",
    ("m", "dat"): "dem",
    ("f", "nom"): "die",
    ("f", "acc"): "die",
    ("f", "dat"): "der",
    ("n", "nom"): "das",
    ("n", "acc"): "das",
    ("n", "dat"): "dem",
}


@functools.cache
def _spell(number, language, form):
    # Imported here: only this corpus needs num2words, and the package must import without it.
    from num2words import num2words

    # num2words separates thousands with a comma ("one thousand, two hundred"), which would read as
    # a list inside a sentence.
    return num2words(number, lang=language, to=form).replace(",", "")


def cardinal(number):
    """A number on its own: 21 -> ("twenty-one", "einundzwanzig")."""
    return _spell(number, "en", "cardinal"), _spell(number, "de", "cardinal")


def year(number):
    """A year: 1984 -> ("nineteen eighty-four", "neunzehnhundertvierundachtzig")."""
    return _spell(number, "en", "year"), _spell(number, "de", "year")


def ordinal(number, ending=""):
    """An ordinal; `ending` declines the German one: (3, "n") -> ("third", "dritten")."""
    return _spell(number, "en", "ordinal"), _spell(number, "de", "ordinal") + ending


def counted(number, noun, case):
    """A number of things: (1, chair, "acc") -> ("one chair", "einen Stuhl")."""
    english, german = cardinal(number)
    if number == 1:
        return f"{english} {noun.english}", f"{INDEFINITE[noun.gender, case]} {noun.german}"
    return f"{english} {noun.english_plural}", f"{german} {noun.german_plural}"


def definite(noun, case):
    """The thing: (chair, "acc") -> ("the chair", "den Stuhl")."""
    return f"the {noun.english}", f"{DEFINITE[noun.gender, case]} {noun.german}"


def ordinal_noun(number, noun, case):
    """The n-th thing: (3, chair, "acc") -> ("the third chair", "den dritten Stuhl")."""
    # After a definite article the adjective ends in -e, in the dative and the masculine
    # accusative in -en.
    ending = "n" if case == "dat" or (noun.gender, case) == ("m", "acc") else ""
    english, german = ordinal(number, ending)
    article = DEFINITE[noun.gender, case]
    return f"the {english} {noun.english}", f"{article} {german} {noun.german}"


def day_of_month(day, month, ending="n"):
    """A day and its month (1 to 12): (3, 5) -> ("third of May", "dritten Mai")."""
    english, german = ordinal(day, ending)
    english_month, german_month, _ = MONTHS[month - 1]
    return f"{english} of {english_month}", f"{german} {german_month}"


def clock_time(hour, minute):
    """A time of a twelve-hour clock, in steps of five minutes as they are said in conversation.

    From 25 to 35 minutes past, German counts from the half hour of the hour to come:
    (7, 25) -> ("twenty-five past seven", "fünf vor halb acht").
    """
    english, german = cardinal(hour)
    next_english, next_german = cardinal(hour % 12 + 1)
    if minute == 0:
        return f"{english} o'clock", f"{_before_uhr(hour)} Uhr"
    if minute == 30:
        return f"half past {english}", f"halb {next_german}"
    if minute < 30:
        english_distance, german_distance = _distance(minute)
        english_time = f"{english_distance} past {english}"
        german_time = f"{german_distance} nach {german}"
    else:
        english_distance, german_distance = _distance(60 - minute)
        english_time = f"{english_distance} to {next_english}"
        german_time = f"{german_distance} vor {next_german}"
    if minute == 25:
        german_time = f"fünf vor halb {next_german}"
    if minute == 35:
        german_time = f"fünf nach halb {next_german}"
    return english_time, german_time


def timetable_time(hour, minute):
    """A time as timetables say it: (7, 5) -> ("seven oh five", "sieben Uhr fünf")."""
    english_minute, german_minute = cardinal(minute)
    if minute < 10:
        english_minute = f"oh {english_minute}"
    return f"{cardinal(hour)[0]} {english_minute}", f"{_before_uhr(hour)} Uhr {german_minute}"


def money(units, hundredths, currency, case):
    """An amount: (12, 50, euro) -> ("twelve euros and fifty cents", "zwölf Euro und fünfzig Cent").

    Either part is left out where it is 0.
    """
    parts = []
    if units:
        parts.append(counted(units, currency.unit, case))
    if hundredths:
        parts.append(counted(hundredths, currency.hundredth, case))
    english, german = zip(*parts, strict=True)
    return " and ".join(english), " und ".join(german)


def _before_uhr(hour):
    return "ein" if hour == 1 else cardinal(hour)[1]


def _distance(minutes):
    return ("a quarter", "Viertel") if minutes == 15 else cardinal(minutes)
