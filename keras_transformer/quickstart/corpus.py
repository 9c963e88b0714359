"""A generated English-German corpus of numbers in words, which needs no download.

The sentences follow the patterns of `number_corpus.toml`, with one German answer for each English
source. They have typical difficulties of the language pair: reversed digits, verbs at the end or
before the subject, agreement. Functions return (English, German) pairs.
"""

import functools
import random
import re
from typing import NamedTuple

from keras_transformer.files import read_toml

# Maximum average number of draws per new pair; with more, the patterns are used up.
_MAX_DRAWS_PER_PAIR = 50
_CONTENT = read_toml(__file__, "number_corpus.toml")


class Noun(NamedTuple):
    """A noun that can be counted."""

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
INDEFINITE, DEFINITE = _CONTENT["indefinite"], _CONTENT["definite"]
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
        return f"{english} {noun.english}", f"{INDEFINITE[noun.gender][case]} {noun.german}"
    return f"{english} {noun.english_plural}", f"{german} {noun.german_plural}"


def definite(noun, case):
    """Returns the thing: (chair, "acc") -> ("the chair", "den Stuhl")."""
    return f"the {noun.english}", f"{DEFINITE[noun.gender][case]} {noun.german}"


def ordinal_noun(number, noun, case):
    """Returns the n-th thing: (3, chair, "acc") -> ("the third chair", "den dritten Stuhl")."""
    # After a definite article the adjective ends in -e, in the dative and the masculine
    # accusative in -en.
    ending = "n" if case == "dat" or (noun.gender, case) == ("m", "acc") else ""
    english, german = ordinal(number, ending)
    article = DEFINITE[noun.gender][case]
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


# Slots with computed words; each function draws a pair.


def _number(rng):
    # Numbers of every length are frequent; short ones are more frequent, as in real text.
    ranges = ((1, 20), (1, 20), (21, 99), (21, 99), (100, 999), (1000, 9999))
    return rng.randint(*rng.choice(ranges))


def _count(rng):
    # No 101, 201, ...: usage varies between "hunderteins Stühle" and "hundertundein Stuhl".
    while (number := _number(rng)) > 1 and number % 100 == 1:
        pass
    return number


def _rank(rng):
    return rng.randint(*rng.choice(((1, 12), (1, 31), (13, 99), (100, 999))))


def _things(rng, case):
    return counted(_count(rng), rng.choice(NOUNS), case)


def _existing(rng):
    count = _count(rng)
    english, german = counted(count, rng.choice(NOUNS), "acc")
    return f"{'is' if count == 1 else 'are'} {english}", german


def _equation(rng):
    sign = rng.choice(("plus", "minus", "times"))
    if sign == "times":
        first, second = rng.randint(2, 20), rng.randint(2, 12)
        result = first * second
    else:
        second, first = sorted((rng.randint(1, 200), rng.randint(1, 100)))
        result = first + second if sign == "plus" else first - second
    (x, x_german), (y, y_german) = cardinal(first), cardinal(second)
    z, z_german = cardinal(result)
    sign_german = "mal" if sign == "times" else sign
    return f"{x} {sign} {y} is {z}", f"{x_german} {sign_german} {y_german} ist {z_german}"


def _date(rng, ending):
    month = rng.randint(1, 12)
    return day_of_month(rng.randint(1, MONTHS[month - 1][2]), month, ending)


def _days(rng):
    month = rng.randint(1, 12)
    first, last = sorted(rng.sample(range(1, MONTHS[month - 1][2] + 1), 2))
    start, start_german = ordinal(first, "n")
    end, end_german = day_of_month(last, month)
    return f"from the {start} to the {end}", f"vom {start_german} bis zum {end_german}"


def _spoken_time(rng):
    return clock_time(rng.randint(1, 12), rng.randrange(0, 60, 5))


def _time(rng):
    if rng.random() < 0.3:
        return timetable_time(rng.randint(1, 12), rng.randint(1, 59))
    return _spoken_time(rng)


def _hours(rng):
    # Opening is from six to eleven and closing from twelve to five, so that they always differ.
    opening = clock_time(rng.randint(6, 11), rng.randrange(0, 60, 15))
    closing = clock_time(rng.choice((12, 1, 2, 3, 4, 5)), rng.randrange(0, 60, 15))
    return f"from {opening[0]} to {closing[0]}", f"von {opening[1]} bis {closing[1]}"


def _money(rng, case):
    currency = rng.choice(CURRENCIES)
    return money(*_amount(rng, currency), currency, case)


def _amount(rng, currency) -> tuple[int, int]:
    hundredths = rng.randint(1, 99) if currency.hundredth and rng.random() < 0.5 else 0
    units = _count(rng) if hundredths == 0 or rng.random() < 0.8 else 0
    return units, hundredths


def _rise(rng):
    currency = rng.choice(CURRENCIES)
    before, after = sorted((_amount(rng, currency), _amount(rng, currency)))
    if before == after:
        return _rise(rng)
    low, low_german = money(*before, currency, "dat")
    high, high_german = money(*after, currency, "acc")
    return f"from {low} to {high}", f"von {low_german} auf {high_german}"


COMPUTED = {
    "number": lambda rng: cardinal(_number(rng)),
    "any_number": lambda rng: cardinal(rng.randint(0, 9999)),
    "things_nom": lambda rng: _things(rng, "nom"),
    "things_acc": lambda rng: _things(rng, "acc"),
    "several": lambda rng: counted(rng.randint(2, 99), rng.choice(NOUNS), "nom"),
    "existing": _existing,
    "equation": _equation,
    "years": lambda rng: counted(rng.randint(1, 99), YEAR, "acc"),
    "thing_nom": lambda rng: definite(rng.choice(NOUNS), "nom"),
    "thing_acc": lambda rng: definite(rng.choice(NOUNS), "acc"),
    "nth_n": lambda rng: ordinal(_rank(rng), "n"),
    "nth_r": lambda rng: ordinal(rng.randint(1, 99), "r"),
    "floor_n": lambda rng: ordinal(rng.randint(1, 60), "n"),
    "nth_nom": lambda rng: ordinal_noun(_rank(rng), rng.choice(NOUNS), "nom"),
    "nth_acc": lambda rng: ordinal_noun(_rank(rng), rng.choice(NOUNS), "acc"),
    "nth_dat": lambda rng: ordinal_noun(_rank(rng), rng.choice(NOUNS), "dat"),
    "year": lambda rng: year(rng.randint(1900, 2099)),
    "past_year": lambda rng: year(rng.randint(1900, 2025)),
    "date": lambda rng: _date(rng, ""),
    "date_n": lambda rng: _date(rng, "n"),
    "days": _days,
    "spoken_time": _spoken_time,
    "time": _time,
    "hours": _hours,
    "money_nom": lambda rng: _money(rng, "nom"),
    "money_acc": lambda rng: _money(rng, "acc"),
    "rise": _rise,
}

_SLOT = re.compile(r"\{(([a-z_]+)\d?)\}")


def draw_pair(rng: random.Random) -> tuple[str, str]:
    """Draws one (English, German) pair: a phrase in lower case, or a sentence with a full stop."""
    family = rng.choices(FAMILIES, [weight for weight, _ in FAMILIES])[0][1]
    patterns = rng.choice(family)
    fillings = {}
    # The subject is drawn first, because the verbs agree with it.
    person = None
    if "{subject}" in patterns[0]:
        *fillings["subject"], person = rng.choice(SUBJECTS)
    for slot, name in _SLOT.findall(" ".join(patterns)):
        if slot in fillings:
            continue
        if name in VERBS:
            fillings[slot] = [forms[person] for forms in VERBS[name]]
        elif name in CHOICES:
            fillings[slot] = rng.choice(CHOICES[name])
        else:
            fillings[slot] = COMPUTED[name](rng)
    texts = [
        pattern.format_map({slot: pair[side] for slot, pair in fillings.items()})
        for side, pattern in enumerate(patterns)
    ]
    return tuple(text[0].upper() + text[1:] if text.endswith(".") else text for text in texts)


def number_corpus(
    seed: int = 0, num_train: int = 20_000, num_valid: int = 300, num_test: int = 300
) -> tuple[list[tuple[str, str]], list[tuple[str, str]], list[tuple[str, str]]]:
    """Makes training, validation and test pairs of numbers, dates, times and money in words.

    The pairs are phrases and sentences such as ("at half past seven", "um halb acht"), each with
    one correct German answer. No source and no target occurs twice, in one part or in several. The
    test pairs are drawn first and depend only on `seed` (a shorter list is the beginning of a
    longer one), so scores stay comparable when the training set grows.

    Args:
        seed: Any integer; the same seed gives the same pairs on every machine.
        num_train, num_valid, num_test: Number of pairs of each part.

    Returns:
        `(train, valid, test)`, lists of `(english, german)`.

    Raises:
        ValueError: If a number of pairs is negative, or larger than the patterns allow.
        ImportError: If num2words is not installed.

    Example:

    >>> from keras_transformer.quickstart.corpus import number_corpus
    >>> train, valid, test = number_corpus(seed=0, num_train=100, num_valid=10, num_test=10)
    >>> len(train), len(valid), len(test)
    (100, 10, 10)
    """
    given = {"num_train": num_train, "num_valid": num_valid, "num_test": num_test}
    for name, number in given.items():
        if not isinstance(number, int) or number < 0:
            raise ValueError(f"{name} must be an integer of 0 or more. Received: {name}={number!r}")
    rng = random.Random(seed)
    sources: set[str] = set()
    targets: set[str] = set()
    numbers = (num_test, num_valid, num_train)
    test, valid, train = (_draw_new(rng, number, sources, targets) for number in numbers)
    return train, valid, test


def _draw_new(rng, number, sources, targets):
    """Draws pairs with a new source and a new target, and adds these to the sets."""
    pairs: list[tuple[str, str]] = []
    draws_left = _MAX_DRAWS_PER_PAIR * number
    while len(pairs) < number:
        if draws_left == 0:
            raise ValueError(
                "The patterns of the number corpus do not give that many distinct pairs. "
                f"Received: {number} pairs on top of {len(sources) - len(pairs)}"
            )
        draws_left -= 1
        source, target = draw_pair(rng)
        if source not in sources and target not in targets:
            sources.add(source)
            targets.add(target)
            pairs.append((source, target))
    return pairs
