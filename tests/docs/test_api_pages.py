"""The pages in docs/api are what `python docs/make_api.py` makes of the docstrings of today."""

import pkgutil
import re

import pytest

import keras_transformer
from tests.docs.public_names import make_api, public_members

COMMITTED = {path.name: path.read_text("utf-8") for path in make_api.FOLDER.iterdir()}
PAGES = make_api.make_pages()


@pytest.mark.parametrize("name", sorted({*COMMITTED, *PAGES}))
def test_the_page_is_up_to_date(name):
    assert COMMITTED.get(name) == PAGES.get(name), "run `python docs/make_api.py`"


def test_every_public_package_has_a_page():
    """All but the command line, which documents itself, and the room of the settings' classes."""
    packages = {
        info.name for info in pkgutil.iter_modules(keras_transformer.__path__) if info.ispkg
    }
    assert packages - {"cli", "settings"} == set(make_api.PACKAGES)


def test_every_name_of_the_library_itself_is_on_a_page():
    elsewhere = {name.rpartition(".")[2] for name in public_members()}
    names = set(keras_transformer.__all__) - {*make_api.PACKAGES, "__version__", "UserError"}
    assert names <= elsewhere
    assert "\n## UserError\n" in PAGES["README.md"]


@pytest.mark.parametrize("name", public_members())
def test_every_name_is_on_its_page_with_its_signature(name):
    package, _, member = name.rpartition(".")
    page = PAGES[f"{package}.md"]
    assert f"\n## {member}\n" in page
    assert f"[`{member}`](#{member.lower()})" in page


def test_no_page_depends_on_the_process():
    for name, text in PAGES.items():
        assert not re.search(r" at 0x|object at|/home/|/tmp/", text), name


def test_signatures_sections_and_examples_of_a_docstring_are_kept():
    def function(size, *, name="a", **kwargs):
        """One line.

        Args:
            size: what it is,
                and more.
            name: a name.

        Plain words.

        Example:

        >>> 1 + 1
        2

        Reference: A paper,
            section 2.
        """

    lines = make_api.describe("function", function)
    assert "\n".join(lines) == (
        '## function\n\n```python\nfunction(size, *, name="a", **kwargs)\n```\n\nOne line.\n\n'
        "**Args**\n\n- `size`: what it is, and more.\n- `name`: a name.\n\nPlain words.\n\n"
        "**Example**\n\n```python\n>>> 1 + 1\n2\n```\n\n**Reference** A paper, section 2.\n"
    )
