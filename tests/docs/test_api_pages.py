"""docs/api has a page for every public package; scripts of docs/ fill them."""

import importlib
import pkgutil
import re

import pytest

import keras_transformer
from tests.docs.public_names import PACKAGES, ROOT, load_script, public_members

FOLDER = ROOT / "docs/api"
INDEX = (FOLDER / "README.md").read_text("utf-8")


def test_every_public_package_has_a_page():
    """All but the command line and the server, and two rooms that others use."""
    modules = pkgutil.iter_modules(keras_transformer.__path__)
    packages = {info.name for info in modules if info.ispkg}
    assert packages - {"cli", "serving", "settings", "translation"} == set(PACKAGES)
    for name in PACKAGES:
        assert f"\n::: keras_transformer.{name}\n" in (FOLDER / f"{name}.md").read_text("utf-8")
        assert f"| [keras_transformer.{name}]({name}.md) |" in INDEX


def test_every_name_of_the_library_itself_is_on_a_page():
    elsewhere = {name.rpartition(".")[2] for name in public_members()}
    names = set(keras_transformer.__all__) - {*PACKAGES, "__version__"}
    assert names - elsewhere == {"UserError"}
    assert names <= set(re.findall(r"`(\w+)`", INDEX))


@pytest.mark.parametrize("package", PACKAGES)
def test_dir_lists_the_names_of_a_package(package):
    module = importlib.import_module(f"keras_transformer.{package}")
    assert set(module.__all__) <= set(dir(module))


def test_the_settings_of_train_are_a_table_each():
    pytest.importorskip("mkdocs_jupyter", reason="needs mkdocs: pip install '.[docs]'")
    tables = load_script("docs/site_hooks.py").settings_tables()
    assert re.search(r"^\| `--beam-size` \| .+ \| Number of beams", tables, re.M)
    assert "\n## search\n" in tables


def test_docstrings_are_rewritten_for_griffe():
    pytest.importorskip("griffe", reason="needs mkdocstrings: pip install '.[docs]'")
    text = (
        "One line.\n\nArgs:\n    a, b: Numbers,\n        both.\n    c: A text.\n\n"
        "Call arguments:\n    x: An array.\n\nReturns:\n    A tuple `(a, b)`: two numbers.\n\n"
        "Example:\n\n>>> 1 + 1  # doctest: +SKIP\n2\n\nReference: A paper.\n"
    )
    assert load_script("docs/api_docstrings.py").rewrite(text) == (
        "One line.\n\nArgs:\n    a: Numbers,\n        both.\n    b: Numbers,\n        both.\n"
        "    c: A text.\n\nOther Parameters: Call arguments\n    x: An array.\n\n"
        "**Returns:** A tuple `(a, b)`: two numbers.\n\n"
        "**Example:**\n\n```pycon\n>>> 1 + 1\n2\n\n```\n\nReference: A paper.\n"
    )
