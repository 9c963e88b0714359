"""Every example in a docstring runs and prints what it says.

The examples of public names need no more than the imports that docs/api/README.md names; those of
other functions may use what their module has.
"""

import doctest
import importlib
import inspect
import pkgutil
import re

import keras
import pytest

import keras_transformer
from tests.docs.public_names import ROOT, public_members, public_methods

PUBLIC = {**public_members(), **public_methods()}
_INDEX = (ROOT / "docs/api/README.md").read_text("utf-8")
BEGINNING = re.search(r"^```python\n(.*?)^```", _INDEX, re.M | re.S)[1]
# What examples need that is not installed with the library, by the end of their names.
LIBRARIES = {"torch": ["torch"], "marian": ["torch", "transformers"], "hub": ["keras_hub"]}
# They train, search with a large beam, or import torch.
SLOW = [
    "bridges.from_marian", "bridges.to_marian", "inference.Translator", "models.Ensemble",
    "models.Transformer.from_preset",
    "parsing.Parser", "training.LayerwiseAdam", "training.LossModel", "training.TokenEvaluator",
    "training.compile_model", "training.evaluate_tokens", "training.train",
]  # fmt: skip
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def private_functions():
    """Functions and classes with an example that are not public, by name."""
    found, public = {}, {id(member) for member in PUBLIC.values()}
    for info in pkgutil.walk_packages(keras_transformer.__path__, "keras_transformer."):
        if info.name.endswith("__main__"):
            continue
        module = importlib.import_module(info.name)
        for name, member in vars(module).items():
            is_own = getattr(member, "__module__", None) == info.name
            if is_own and callable(member) and id(member) not in public:
                if ">>> " in (inspect.getdoc(member) or ""):
                    found[f"{info.name}.{name}"] = member
    return found


PRIVATE = private_functions()


def run(name, member, names):
    for library in LIBRARIES.get(name.rpartition("_")[2], ()):
        pytest.importorskip(library, reason=f"needs {library}")
    text = inspect.getdoc(member)
    example = doctest.DocTestParser().get_doctest(text, names, name, None, None)
    output = []
    results = doctest.DocTestRunner(optionflags=OPTIONS).run(example, out=output.append)
    assert not results.failed, "".join(output)


def marked(names):
    return [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in names]


@pytest.mark.parametrize("name", marked(name for name in PUBLIC if ">>> " in PUBLIC[name].__doc__))
def test_the_example_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(BEGINNING, names)
    run(name, PUBLIC[name], names)


@pytest.mark.parametrize("name", marked(PRIVATE))
def test_the_example_of_a_private_function_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(PRIVATE[name].__module__)
    run(name, PRIVATE[name], {**vars(module), "keras": keras})
