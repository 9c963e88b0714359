"""The API is documented: a page for each package, and an example in the docstring of each name.

The examples run, with no more than the imports that docs/api/README.md names.
"""

import doctest
import importlib
import inspect
import pkgutil
import re

import pytest

import keras_transformer
from tests.docs.public_names import PACKAGES, ROOT, public_members, public_methods

INDEX = (ROOT / "docs/api/README.md").read_text("utf-8")
BEGINNING = re.search(r"^```python\n(.*?)^```", INDEX, re.M | re.S)[1]
MEMBERS, METHODS = public_members(), public_methods()
EVERYTHING = {**MEMBERS, **METHODS}
# What examples need that is not installed with the library, by the end of their names.
LIBRARIES = {"torch": ["torch"], "marian": ["torch", "transformers"], "hub": ["keras_hub"]}
# They train, search with a large beam, or import torch.
SLOW = [
    "bridges.from_marian", "bridges.to_marian", "inference.Translator", "models.Ensemble",
    "models.Transformer.from_preset",
    "parsing.Parser", "training.LayerwiseAdam", "training.LossModel", "training.TokenEvaluator",
    "training.compile_model", "training.evaluate_tokens", "training.train",
]  # fmt: skip


def test_every_public_package_has_a_page():
    """All but the command line and the server, and rooms whose names other packages have."""
    modules = pkgutil.iter_modules(keras_transformer.__path__)
    packages = {info.name for info in modules if info.ispkg}
    assert packages - {"cli", "losses", "serving", "settings", "translation"} == set(PACKAGES)
    for name in PACKAGES:
        page = (ROOT / f"docs/api/{name}.md").read_text("utf-8")
        assert f"\n::: keras_transformer.{name}\n" in page
        assert f"| [keras_transformer.{name}]({name}.md) |" in INDEX
        module = importlib.import_module(f"keras_transformer.{name}")
        assert set(module.__all__) <= set(dir(module))


def test_every_class_and_function_has_an_example():
    assert not [name for name, member in MEMBERS.items() if ">>> " not in inspect.getdoc(member)]


def marked(names):
    return [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in names]


def has_lines_to_run(member):
    examples = doctest.DocTestParser().get_examples(member.__doc__)
    return not all(example.options.get(doctest.SKIP) for example in examples)


@pytest.mark.parametrize(
    "name", marked(name for name, member in EVERYTHING.items() if has_lines_to_run(member))
)
def test_the_example_runs(name, tmp_path, monkeypatch):
    for library in LIBRARIES.get(name.rpartition("_")[2], ()):
        pytest.importorskip(library, reason=f"needs {library}")
    monkeypatch.chdir(tmp_path)
    names, output = {}, []
    exec(BEGINNING, names)
    text = inspect.getdoc(EVERYTHING[name])
    example = doctest.DocTestParser().get_doctest(text, names, name, None, None)
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    results = doctest.DocTestRunner(optionflags=options).run(example, out=output.append)
    assert not results.failed, "".join(output)
