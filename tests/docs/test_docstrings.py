"""Every public name says what it takes and returns, and has an example."""

import ast
import inspect
import re
import textwrap

import pytest

from tests.docs.public_names import (
    parameters_of,
    public_members,
    public_methods,
    sections_of,
)

MEMBERS, METHODS = public_members(), public_methods()
EVERYTHING = {**MEMBERS, **METHODS}


def has_own_arguments(member):
    """Whether it takes arguments that this library, not Keras, has given it."""
    constructor = member.__init__ if inspect.isclass(member) else member
    is_own = getattr(constructor, "__module__", "").startswith("keras_transformer")
    is_tuple = inspect.isclass(member) and issubclass(member, tuple)
    return bool(parameters_of(member)) and (is_own or is_tuple)


def returned_values(member):
    tree = ast.parse(textwrap.dedent(inspect.getsource(member)))
    returns = [node.value for node in ast.walk(tree) if isinstance(node, ast.Return)]
    return [value for value in returns if value is not None]


def names_in(sections):
    text = sections.get("Args", "") + sections.get("Attributes", "")
    entries = re.findall(r"^    (\*{0,2}\w+(?:, \*{0,2}\w+)*): ", text, re.M)
    return {name.strip("* ") for entry in entries for name in entry.split(",")}


@pytest.mark.parametrize("name", EVERYTHING)
def test_the_first_line_is_a_sentence(name):
    first = inspect.getdoc(EVERYTHING[name]).splitlines()[0]
    assert first.endswith(".") and len(first) <= 100


@pytest.mark.parametrize("name", MEMBERS)
def test_there_is_an_example(name):
    assert ">>> " in sections_of(MEMBERS[name]).get("Example", "")


@pytest.mark.parametrize(
    "name", [n for n, member in EVERYTHING.items() if has_own_arguments(member)]
)
def test_every_argument_is_explained(name):
    text = inspect.getdoc(EVERYTHING[name])
    if "rguments as of `" in text or "rguments are those of `" in text:
        return  # They are explained there.
    parameters = parameters_of(EVERYTHING[name]).values()
    expected = {p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    assert expected <= names_in(sections_of(EVERYTHING[name]))


FUNCTIONS = {
    name: member
    for name, member in EVERYTHING.items()
    if not inspect.isclass(member) and not isinstance(member, property)
}


@pytest.mark.parametrize("name", [n for n, member in FUNCTIONS.items() if returned_values(member)])
def test_what_is_returned_is_explained(name):
    text = inspect.getdoc(FUNCTIONS[name])
    sections = sections_of(FUNCTIONS[name])
    has_section = "Returns" in sections or "Yields" in sections
    assert has_section or text.split()[0] in ("Return", "Returns", "Yields")
