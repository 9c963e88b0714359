"""Docstrings as mkdocstrings reads them: examples as code, and an entry for each argument."""

import re

import griffe


class Docstrings(griffe.Extension):
    """Rewrites what griffe's parser of Google's style does not know of our docstrings."""

    def on_instance(self, *, obj, **options):
        """Called by griffe for every class, function and attribute."""
        if obj.docstring:
            obj.docstring.value = rewrite(obj.docstring.value)
        for parameter in getattr(obj, "parameters", ()) if obj.is_function else ():
            if parameter.default == "<factory>":
                parameter.default = "{}"

    def on_class_members(self, *, cls, **options):
        """Called by griffe for every class; leaves out fields, and what other libraries add."""
        for name, member in [*cls.members.items()]:
            if member.is_alias:
                is_left_out = not member.target_path.startswith("keras_transformer.")
            else:
                is_left_out = member.is_attribute and "property" not in member.labels
            if is_left_out:
                cls.del_member(name)


def rewrite(text):
    """Returns a docstring in Google's style."""
    text = text.replace("\nCall arguments:\n", "\nOther Parameters: Call arguments\n")
    # `a, b: meaning` are two arguments.
    text = re.sub(r"^    (\w+(?:,\s+\w+)+): ((?:.*\n?)(?: {8}.*\n?)*)", _split, text, flags=re.M)
    # The parser takes a colon in the first line for the end of a type.
    text = re.sub(r"^(Returns|Yields):\s+", r"**\1:** ", text, flags=re.M)
    # Without a fence, `>>>` is a quotation of quotations.
    text = re.sub(r" *# doctest: \+\w+", "", text)
    example = re.compile(r"^Example:\n\n((?:.+\n?)+)", re.M)
    return example.sub(r"**Example:**\n\n```pycon\n\1\n```\n", text)


def _split(match):
    return "".join(f"    {name}: {match[2]}" for name in re.split(r",\s+", match[1]))
