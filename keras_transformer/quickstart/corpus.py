"""A generated English-German corpus of numbers in words, which needs no download.

The sentences follow the patterns of `number_corpus.toml`, with one German answer for each English
source. They have typical difficulties of the language pair: reversed digits, verbs at the end or
before the subject, agreement.
"""

import random
import re

from keras_transformer.quickstart import number_words as words

# Maximum average number of draws per new pair; with more, the patterns are used up.
_MAX_DRAWS_PER_PAIR = 50


def number_corpus(
    seed: int = 0, num_train: int = 20_000, num_valid: int = 300, num_test: int = 300
) -> tuple[list[tuple[str, str]], list[tuple[str, str]], list[tuple[str, str]]]:
    """Makes training, validation and test pairs of numbers, dates, times and money in words.

    The pairs are phrases and sentences such as ("at half past seven", "um halb acht"), each with
    one correct German answer. No source and no target occurs twice, in one part or in several. The
    test pairs are drawn first and depend only on `seed` (a shorter list is the beginning of a
    longer one), so scores stay comparable when the training set grows.

    Args:
        seed: any integer; the same seed gives the same pairs on every machine.
        num_train, num_valid, num_test: number of pairs of each part.

    Returns:
        `(train, valid, test)`, lists of `(english, german)`.

    Raises:
        ValueError: if a number of pairs is negative, or larger than the patterns allow.
        ImportError: if num2words is not installed.

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


# --- Slots with computed words; each function draws one (English, German) pair ---


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
    return words.counted(_count(rng), rng.choice(words.NOUNS), case)


def _existing(rng):
    count = _count(rng)
    english, german = words.counted(count, rng.choice(words.NOUNS), "acc")
    return f"{'is' if count == 1 else 'are'} {english}", german


def _equation(rng):
    sign = rng.choice(("plus", "minus", "times"))
    if sign == "times":
        first, second = rng.randint(2, 20), rng.randint(2, 12)
        result = first * second
    else:
        second, first = sorted((rng.randint(1, 200), rng.randint(1, 100)))
        result = first + second if sign == "plus" else first - second
    (x, x_german), (y, y_german) = words.cardinal(first), words.cardinal(second)
    z, z_german = words.cardinal(result)
    sign_german = "mal" if sign == "times" else sign
    return f"{x} {sign} {y} is {z}", f"{x_german} {sign_german} {y_german} ist {z_german}"


def _date(rng, ending):
    month = rng.randint(1, 12)
    return words.day_of_month(rng.randint(1, words.MONTHS[month - 1][2]), month, ending)


def _days(rng):
    month = rng.randint(1, 12)
    first, last = sorted(rng.sample(range(1, words.MONTHS[month - 1][2] + 1), 2))
    start, start_german = words.ordinal(first, "n")
    end, end_german = words.day_of_month(last, month)
    return f"from the {start} to the {end}", f"vom {start_german} bis zum {end_german}"


def _spoken_time(rng):
    return words.clock_time(rng.randint(1, 12), rng.randrange(0, 60, 5))


def _time(rng):
    if rng.random() < 0.3:
        return words.timetable_time(rng.randint(1, 12), rng.randint(1, 59))
    return _spoken_time(rng)


def _hours(rng):
    # Opening is from six to eleven and closing from twelve to five, so that they always differ.
    opening = words.clock_time(rng.randint(6, 11), rng.randrange(0, 60, 15))
    closing = words.clock_time(rng.choice((12, 1, 2, 3, 4, 5)), rng.randrange(0, 60, 15))
    return f"from {opening[0]} to {closing[0]}", f"von {opening[1]} bis {closing[1]}"


def _money(rng, case):
    currency = rng.choice(words.CURRENCIES)
    return words.money(*_amount(rng, currency), currency, case)


def _amount(rng, currency) -> tuple[int, int]:
    hundredths = rng.randint(1, 99) if currency.hundredth and rng.random() < 0.5 else 0
    units = _count(rng) if hundredths == 0 or rng.random() < 0.8 else 0
    return units, hundredths


def _rise(rng):
    currency = rng.choice(words.CURRENCIES)
    before, after = sorted((_amount(rng, currency), _amount(rng, currency)))
    if before == after:
        return _rise(rng)
    low, low_german = words.money(*before, currency, "dat")
    high, high_german = words.money(*after, currency, "acc")
    return f"from {low} to {high}", f"von {low_german} auf {high_german}"


COMPUTED = {
    "number": lambda rng: words.cardinal(_number(rng)),
    "any_number": lambda rng: words.cardinal(rng.randint(0, 9999)),
    "things_nom": lambda rng: _things(rng, "nom"),
    "things_acc": lambda rng: _things(rng, "acc"),
    "several": lambda rng: words.counted(rng.randint(2, 99), rng.choice(words.NOUNS), "nom"),
    "existing": _existing,
    "equation": _equation,
    "years": lambda rng: words.counted(rng.randint(1, 99), words.YEAR, "acc"),
    "thing_nom": lambda rng: words.definite(rng.choice(words.NOUNS), "nom"),
    "thing_acc": lambda rng: words.definite(rng.choice(words.NOUNS), "acc"),
    "nth_n": lambda rng: words.ordinal(_rank(rng), "n"),
    "nth_r": lambda rng: words.ordinal(rng.randint(1, 99), "r"),
    "floor_n": lambda rng: words.ordinal(rng.randint(1, 60), "n"),
    "nth_nom": lambda rng: words.ordinal_noun(_rank(rng), rng.choice(words.NOUNS), "nom"),
    "nth_acc": lambda rng: words.ordinal_noun(_rank(rng), rng.choice(words.NOUNS), "acc"),
    "nth_dat": lambda rng: words.ordinal_noun(_rank(rng), rng.choice(words.NOUNS), "dat"),
    "year": lambda rng: words.year(rng.randint(1900, 2099)),
    "past_year": lambda rng: words.year(rng.randint(1900, 2025)),
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
    family = rng.choices(words.FAMILIES, [weight for weight, _ in words.FAMILIES])[0][1]
    patterns = rng.choice(family)
    fillings = {}
    # The subject is drawn first, because the verbs agree with it.
    person = None
    if "{subject}" in patterns[0]:
        *fillings["subject"], person = rng.choice(words.SUBJECTS)
    for slot, name in _SLOT.findall(" ".join(patterns)):
        if slot in fillings:
            continue
        if name in words.VERBS:
            fillings[slot] = [forms[person] for forms in words.VERBS[name]]
        elif name in words.CHOICES:
            fillings[slot] = rng.choice(words.CHOICES[name])
        else:
            fillings[slot] = COMPUTED[name](rng)
    texts = [
        pattern.format_map({slot: pair[side] for slot, pair in fillings.items()})
        for side, pattern in enumerate(patterns)
    ]
    return tuple(text[0].upper() + text[1:] if text.endswith(".") else text for text in texts)
