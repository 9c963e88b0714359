"""Every public name says what it takes and returns, and has an example."""

import ast
import inspect
import re
import textwrap

from tests.docs.public_names import parameters_of, public_members, public_methods, sections_of

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


def test_the_first_line_is_a_sentence():
    first = {name: inspect.getdoc(member).splitlines()[0] for name, member in EVERYTHING.items()}
    assert not [name for name, line in first.items() if line[-1] != "." or len(line) > 100]


def test_there_is_an_example():
    examples = {name: sections_of(member).get("Example", "") for name, member in MEMBERS.items()}
    assert not [name for name, example in examples.items() if ">>> " not in example]


def test_every_argument_is_explained():
    missing = {}
    for name, member in EVERYTHING.items():
        text = inspect.getdoc(member)
        # They are explained there: `help` of a class or a function must not need another page.
        refers = "rguments as of `" in text or "rguments are those of `" in text
        if refers and (name in METHODS or "keras.optimizers.Adam" in text):
            continue
        parameters = parameters_of(member).values() if has_own_arguments(member) else ()
        expected = {p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
        missing[name] = expected - names_in(sections_of(member))
    assert not {name: arguments for name, arguments in missing.items() if arguments}


def test_what_is_returned_is_explained():
    missing = []
    for name, member in EVERYTHING.items():
        if inspect.isclass(member) or isinstance(member, property) or not returned_values(member):
            continue
        summary = inspect.getdoc(member).splitlines()[0]
        is_in_summary = any(word in summary for word in ("Return", "returns", "Yields"))
        if not is_in_summary and not {"Returns", "Yields"} & set(sections_of(member)):
            missing.append(name)
    assert not missing
