"""Checks of arguments."""

import numbers
import sys
from collections.abc import Collection
from typing import Any


def check_argument(is_allowed: Any, name: str, rule: str, value: Any) -> None:
    """Raises `ValueError` unless `is_allowed`; `rule` is the text after "must be"."""
    if not is_allowed:
        raise ValueError(f"`{name}` must be {rule}. Received: {name}={value!r}")


def _is_integer(value):
    return isinstance(value, int) and not isinstance(value, bool)


def check_positive_integer(name: str, value: Any, maximum: int | None = None) -> None:
    """Raises `ValueError` unless `value` is an integer of at least 1, and at most `maximum`."""
    check_argument(_is_integer(value) and value >= 1, name, "a positive integer", value)
    if maximum is not None:
        check_argument(value <= maximum, name, f"at most {maximum:,}", value)


def _is_number(value):
    # A larger int has no float.
    is_real = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_real and abs(value) <= sys.float_info.max


def check_rate(name: str, value: Any) -> None:
    """Raises `ValueError` unless `value` is a dropout rate, 0 <= rate < 1."""
    is_rate = _is_number(value) and 0 <= value < 1
    check_argument(is_rate, name, "a number of at least 0 and less than 1", value)


def check_positive_number(name: str, value: Any) -> None:
    """Raises `ValueError` unless `value` is a number greater than 0."""
    check_argument(_is_number(value) and value > 0, name, "a number greater than 0", value)


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


def check_seed(name: str, value: Any) -> None:
    """Raises `ValueError` unless `value` is an integer that Keras' generators take, or None."""
    is_seed = value is None or (_is_integer(value) and 0 <= value < 2**32)
    check_argument(is_seed, name, f"an integer from 0 to {2**32 - 1}, or None", value)


def check_choice(name: str, value: Any, allowed: Collection) -> None:
    """Raises `ValueError` unless `value` is one of `allowed`."""
    check_argument(value in allowed, name, f"one of {', '.join(map(repr, allowed))}", value)
