"""Checks of arguments."""

import numbers
import sys
from collections.abc import Collection
from typing import Any


def check_positive_integer(name: str, value: Any, maximum: int | None = None) -> None:
    """Raises `ValueError` unless `value` is an integer of at least 1, and at most `maximum`."""
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    check_argument(is_integer and value >= 1, name, "a positive integer", value)
    if maximum is not None:
        check_argument(value <= maximum, name, f"at most {maximum:,}", value)


def is_number(value: Any) -> bool:
    """Returns whether `value` is a finite int or float, not a bool."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return abs(value) <= sys.float_info.max  # a larger int has no float


def check_rate(name: str, value: Any) -> None:
    """Raises `ValueError` unless `value` is a dropout rate, 0 <= rate < 1."""
    is_rate = is_number(value) and 0 <= value < 1
    check_argument(is_rate, name, "a number of at least 0 and less than 1", value)


def check_positive_number(name: str, value: Any) -> None:
    """Raises `ValueError` unless `value` is a number greater than 0."""
    check_argument(is_number(value) and value > 0, name, "a number greater than 0", value)


def checked_number(name: str, value: Any, lowest: float, highest: float) -> float:
    """Returns a number as a `float`, or raises `ValueError` unless it is in the range.

    Other numbers, such as NumPy's, change the dtype of operands and cannot be written as JSON.
    """
    is_real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    rule = f"a number from {lowest:g} to {highest:g}"
    check_argument(is_real and lowest <= value <= highest, name, rule, value)
    return float(value)


def check_boolean(name: str, value: Any) -> None:
    """Raises `ValueError` unless `value` is True or False."""
    check_argument(isinstance(value, bool), name, "True or False", value)


def check_seed(seed: int | None) -> None:
    """Raises `ValueError` unless `seed` is an integer that Keras' generators take, or None."""
    is_integer = isinstance(seed, int) and not isinstance(seed, bool)
    is_seed = seed is None or (is_integer and 0 <= seed < 2**32)
    check_argument(is_seed, "seed", f"an integer from 0 to {2**32 - 1}, or None", seed)


def check_built(layer: Any) -> None:
    """Raises `ValueError` unless `layer` is built."""
    if not layer.built:
        rule = "A cache has the sizes of a layer's weights: call or build the layer first"
        raise ValueError(f"{rule}. Received: {type(layer).__name__} {layer.name!r}, not built")


def check_choice(name: str, value: Any, allowed: Collection) -> None:
    """Raises `ValueError` unless `value` is one of `allowed`."""
    check_argument(value in allowed, name, f"one of {', '.join(map(repr, allowed))}", value)


def check_argument(is_allowed: Any, name: str, rule: str, value: Any) -> None:
    """Raises `ValueError` unless `is_allowed`; `rule` is the text after "must be"."""
    if not is_allowed:
        raise ValueError(f"`{name}` must be {rule}. Received: {name}={value!r}")
