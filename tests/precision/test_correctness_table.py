"""docs/correctness.md has the tables of its command, and leaves out no precision, layer and bridge.

The figures may be those of another machine; everything else has to be up to date.
"""

import pathlib
import re

import pytest

from benchmarks import correctness_table
from tests.precision.against_oracle import SWEEP_BOUNDS
from tests.precision.components import COMPONENTS
from tests.precision.measurements import POLICIES

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="module")
def page():
    return correctness_table.PATH.read_text(encoding="utf-8")


def test_the_bounds_of_the_sweep_are_named(page):
    for dtype, (output, gradient) in SWEEP_BOUNDS.items():
        assert f"{output:.0e} and {gradient:.0e} in {dtype}" in page


def test_the_command_replaces_the_tables_alone(page):
    measured = {"components": {"a layer": {"float32": [1.0, 2.0]}}, "bridges": {"a": "b"}}
    rendered = correctness_table.render(page, {"tensorflow": measured})
    assert rows(rendered, "### TensorFlow")["a layer"] == ["1.0e+00 / 2.0e+00"]
    assert rows(rendered, "## Against other libraries")["a"] == ["b"]
    assert rows(rendered, "### JAX") == rows(page, "### JAX")
    texts = [
        re.sub(r"^\|.*\n|^Measured with (?:.+\n)+", "", x, flags=re.M) for x in (rendered, page)
    ]
    assert texts[0] == texts[1]


def rows(page, title):
    """The tables behind a title: a dict of the first cell of each row to the others."""
    text = page.split(f"{title}\n", 1)[1].split("\n#", 1)[0]
    cells = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    return {first: others for first, *others in cells}


@pytest.mark.parametrize("backend", correctness_table.BACKENDS.values())
def test_every_precision_and_component_has_a_figure_within_its_bound(page, backend):
    table = rows(page, f"### {backend}")
    policies = [policy for policy in POLICIES if policy != "float64" or backend == "TensorFlow"]
    assert page.count(f"|  | {' | '.join(policies)} |") >= 1
    for name, component in COMPONENTS.items():
        figures = table[name]
        assert len(figures) == len(policies)
        for figure, policy in zip(figures, policies, strict=True):
            error, bound = figure.split(" / ")
            assert bound == f"{component.bound(policy):.1e}"
            assert float(error) <= float(bound)


def test_every_bridge_has_a_figure(page):
    from tests.bridges.errors import BRIDGE_ERRORS

    table = rows(page, "## Against other libraries")
    for name in BRIDGE_ERRORS:
        error, bound = table[name][0].split(" / ")
        assert float(error) <= float(bound)


def test_the_tests_that_hold_the_bugs_exist(page):
    tests = re.findall(r"`(tests/\S+)::(\w+)`", page.partition("## Bugs that the oracles found")[2])
    assert tests
    for path, name in tests:
        source = (ROOT / path).read_text(encoding="utf-8")
        assert re.search(rf"^def {name}\(", source, re.MULTILINE), name
