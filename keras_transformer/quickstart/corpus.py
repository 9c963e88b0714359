"""An English-German corpus of numbers in words, made on the spot: no file, no download."""

import random

from keras_transformer.quickstart.sentences import draw_pair

# More draws per new pair mean that the patterns are used up.
_MAX_DRAWS_PER_PAIR = 50


def number_corpus(
    seed: int = 0, num_train: int = 20_000, num_valid: int = 300, num_test: int = 300
) -> tuple[list[tuple[str, str]], list[tuple[str, str]], list[tuple[str, str]]]:
    """Makes training, validation and test pairs of numbers, dates, times and money in words.

    Phrases and sentences such as ("at half past seven", "um halb acht"), each with one right German
    answer. All sources and all targets are distinct over the three parts together: neither source
    nor target of a held-out pair is in another part. The test pairs are drawn first and depend on
    `seed` alone (a shorter list is the beginning of a longer one), so scores stay comparable when
    the training set grows.

    Args:
        seed: any integer; it determines the pairs, on every machine.
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
    sources, targets = set(), set()
    numbers = (num_test, num_valid, num_train)
    test, valid, train = (_draw_new(rng, number, sources, targets) for number in numbers)
    return train, valid, test


def _draw_new(rng, number, sources, targets):
    """Draws pairs of new sources and targets, and adds these to the sets."""
    pairs = []
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
