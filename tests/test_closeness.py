"""Tests of `assert_close`, and that no other test has a tolerance of rounding."""

import ast
import pathlib

import numpy as np
import pytest

from tests.closeness import assert_close


def test_another_order_of_a_sum_is_close_and_an_error_of_a_thousandth_is_not():
    terms = np.random.default_rng(0).normal(size=(200, 1024)).astype("float32")
    one_by_one = np.cumsum(terms, axis=1, dtype="float32")[:, -1]
    expected = terms.astype("float64").sum(axis=1)
    assert_close(one_by_one, expected)
    with pytest.raises(AssertionError, match="largest difference"):
        assert_close(1.001 * expected, expected)


@pytest.mark.parametrize(
    "actual, expected",
    [([1.0, np.nan], [1.0, 2.0]), ([-np.inf, 1.0], [np.inf, 1.0]), ([[1.0]], [1.0])],
)
def test_what_no_rounding_explains_is_refused(actual, expected):
    with pytest.raises(AssertionError):
        assert_close(actual, expected)


# They state how exact formulas are.
_OTHERS = ("oracle", "precision")


def test_no_other_comparison_of_arrays_has_a_tolerance_of_rounding():
    root, found = pathlib.Path(__file__).parent, []
    for path in root.rglob("*.py"):
        if path.relative_to(root).parts[0] in _OTHERS:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("assert_allclose"):
                tolerances = [k.value for k in node.keywords if k.arg in ("atol", "rtol")]
                values = [t.value for t in tolerances if isinstance(t, ast.Constant) and t.value]
                if not tolerances or min(values, default=1.0) < 1e-4:
                    found.append(f"{path.relative_to(root)}:{node.lineno}")
    assert not found, "use tests.closeness.assert_close"
