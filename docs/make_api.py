"""Writes the API reference, docs/api/*.md, from the docstrings of every public name.

    python docs/make_api.py

A page for each public package, in the order of its `__all__`; the tests compare the pages with what
this command makes.
"""

import importlib
import inspect
import pathlib
import re
import sys
import textwrap

FOLDER = pathlib.Path(__file__).parent / "api"
PACKAGES = (
    "layers",
    "models",
    "decoding",
    "data",
    "training",
    "evaluation",
    "export",
    "inference",
    "parsing",
    "quickstart",
    "bridges",
)
SECTIONS = (
    "Args",
    "Call arguments",
    "Attributes",
    "Returns",
    "Yields",
    "Raises",
    "Example",
    "Reference",
    "Source",
)
_SECTION = re.compile(rf"({'|'.join(SECTIONS)}): ?(.*)")
_ENTRY = re.compile(r"(\*{0,2}\w+(?:, \*{0,2}\w+)*): (.*)", re.DOTALL)
WITH_ENTRIES = ("Args", "Call arguments", "Attributes", "Raises")
_LONGEST_SIGNATURE = 88
EXAMPLES_BEGIN_WITH = """\
import keras
import keras_transformer
import numpy as np
from keras import ops
"""


def make_pages():
    """Returns the texts of all pages by file name."""
    pages = {f"{name}.md": make_page(name) for name in PACKAGES}
    pages["settings.md"] = make_settings()
    pages["README.md"] = make_index()
    return pages


def make_settings():
    """Returns the page of the settings of `train`, from their declarations."""
    settings = importlib.import_module("keras_transformer.cli.settings")
    lines = ["# Settings of `keras-transformer train`", "", *_notice()]
    for table, heading in settings.TABLES.items():
        lines += ["", f"## {table}", "", f"{heading[0].upper()}{heading[1:]}.", ""]
        lines += ["| option | default | meaning |", "|---|---|---|"]
        for one in settings.settings_in(table):
            default = one.unset or "" if one.default is None else f"`{one.default}`"
            lines.append(f"| `{one.flag}` | {default} | {one.text[0].upper()}{one.text[1:]} |")
    return "\n".join(lines) + "\n"


def make_index():
    """Returns the page that lists the others."""
    top = importlib.import_module("keras_transformer")
    lines = ["# API reference", "", *_notice(), ""]
    lines += ["| package | what is in it |", "|---|---|"]
    for name in PACKAGES:
        module = importlib.import_module(f"keras_transformer.{name}")
        lines.append(f"| [keras_transformer.{name}]({name}.md) | {_summary(module)} |")
    lines.append("| [keras-transformer train](settings.md) | All settings of this command. |")
    shortcuts = sorted(set(top.__all__) - set(PACKAGES) - {"__version__", "UserError"})
    names = ", ".join(f"`{name}`" for name in shortcuts)
    lines += ["", f"{names} are in `keras_transformer` itself as well. The examples begin with", ""]
    lines += ["```python", *EXAMPLES_BEGIN_WITH.splitlines(), "```", ""]
    lines += describe("UserError", top.UserError)
    return "\n".join(lines).rstrip() + "\n"


def make_page(package):
    """Returns the page of one package."""
    module = importlib.import_module(f"keras_transformer.{package}")
    lines = [f"# keras_transformer.{package}", "", *_notice(), "", inspect.getdoc(module), ""]
    members = {name: getattr(module, name) for name in module.__all__}
    constants = {name: value for name, value in members.items() if not callable(value)}
    lines += ["| name | |", "|---|---|"]
    for name, member in members.items():
        if name not in constants:
            lines.append(f"| [`{name}`](#{name.lower()}) | {_summary(member)} |")
    lines += [f"| `{name}` | `{value!r}` |" for name, value in constants.items()]
    lines.append("")
    for name, member in members.items():
        if name not in constants:
            lines += describe(name, member)
    return "\n".join(lines).rstrip() + "\n"


def describe(name, member, level=2):
    """Returns the lines of a class with its methods, or of a function."""
    heading = name.replace("__", r"\_\_")  # `__call__` would be a bold "call".
    lines = [f"{'#' * level} {heading}", ""]
    signature = _signature(name, member)
    if signature:
        lines += ["```python", signature.replace("'", '"'), "```", ""]
    lines += render(inspect.getdoc(member))
    if inspect.isclass(member):
        for method_name, method in own_methods(member):
            lines += describe(f"{name}.{method_name}", method, level + 1)
    return lines


def own_methods(member):
    """Yields names and values of the methods and properties that this library documents."""
    seen = set()
    for part in inspect.getmro(member):
        if not part.__module__.startswith("keras_transformer"):
            continue
        for name, value in vars(part).items():
            is_public = not name.startswith("_") or name == "__call__"
            function = getattr(value, "__func__", getattr(value, "fget", value))
            if name in seen or not is_public or not inspect.isfunction(function):
                continue
            seen.add(name)
            if function.__doc__:
                yield name, value if isinstance(value, property) else getattr(member, name)


def render(docstring):
    """Returns the lines of a docstring in Markdown."""
    lines = []
    for section, text in split_sections(docstring):
        if section is None:
            lines += [text, ""]
        elif section == "Example":
            text = re.sub(r" *# doctest: \+\w+", "", text)
            lines += ["**Example**", "", "```python", text, "```", ""]
        elif section in WITH_ENTRIES:
            entries = (f"- `{name}`: {what}" for name, what in entries_of(text))
            lines += [f"**{section}**", "", *entries, ""]
        else:
            lines += [f"**{section}** {' '.join(text.splitlines())}", ""]
    return lines


def split_sections(docstring):
    """Returns pairs of a section's name, or None for plain text, and its text."""
    sections = [(None, [])]
    for line in docstring.splitlines():
        match = _SECTION.fullmatch(line)
        section = sections[-1][0]
        if match:
            sections.append((match.group(1), [match.group(2)]))
        # Plain text after a section; but an example is written without indentation.
        elif section not in (None, "Example") and line and not line.startswith(" "):
            sections.append((None, [line]))
        else:
            sections[-1][1].append(line)
    pairs = [(section, _dedent(section, lines)) for section, lines in sections]
    return [(section, text) for section, text in pairs if text]


def _dedent(section, lines):
    first, rest = ("", lines) if section is None else (lines[0], lines[1:])
    return f"{first}\n{textwrap.dedent(chr(10).join(rest))}".strip("\n")


def entries_of(text):
    """Returns pairs of a name and what is said of it; lines that are indented go on."""
    entries = []
    for line in text.splitlines():
        if line.startswith(" ") and entries:
            entries[-1] += " " + line.strip()
        else:
            entries.append(line)
    return [_ENTRY.fullmatch(entry).groups() for entry in entries]


def signature_of(member):
    """Returns the signature of a constructor, function or method, without self; or None."""
    is_class = inspect.isclass(member)
    if isinstance(member, property) or getattr(member, "_is_protocol", False):
        return None
    if is_class and issubclass(member, Exception):
        return None
    function = member
    if is_class:
        # `__new__` of Keras takes anything; that of a named tuple takes its fields.
        function = member.__new__ if issubclass(member, tuple) else member.__init__
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    if is_class or (parameters and parameters[0].name == "self"):
        parameters = parameters[1:]
    result = signature.empty if is_class else signature.return_annotation
    return signature.replace(parameters=parameters, return_annotation=result)


def _signature(name, member):
    signature = signature_of(member)
    if signature is None:
        return ""
    parameters, result = list(signature.parameters.values()), signature.return_annotation
    text = f"{name}{signature}"
    if len(text) <= _LONGEST_SIGNATURE:
        return text
    arrow = f" -> {inspect.formatannotation(result)}" if result is not signature.empty else ""
    kinds = [parameter.kind for parameter in parameters]
    lines = [f"    {parameter}," for parameter in parameters]
    if inspect.Parameter.VAR_POSITIONAL not in kinds and inspect.Parameter.KEYWORD_ONLY in kinds:
        lines.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "    *,")
    return "\n".join([f"{name}(", *lines, f"){arrow}"])


def _summary(member):
    return inspect.getdoc(member).splitlines()[0]


def _notice():
    return ["Written by `python docs/make_api.py` from the docstrings; [all pages](README.md)."]


def main():
    FOLDER.mkdir(exist_ok=True)
    pages = make_pages()
    for path in FOLDER.glob("*.md"):
        if path.name not in pages:
            path.unlink()
    for name, text in pages.items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.path.insert(0, str(FOLDER.parents[1]))  # This repository, whatever else is installed.
    main()
