"""The package imports quickly: what is heavy comes with the call that needs it."""

import subprocess
import sys

_CODE = """
import sys
import keras_transformer
before = set(sys.modules)
import keras_transformer.data as data
heavy = {"tensorflow", "tensorflow_text", "tensorflow_datasets", "num2words"} - before
assert not heavy & set(sys.modules), heavy & set(sys.modules)
missing = [name for name in data.__all__ if not hasattr(data, name)]
assert not missing, missing
"""


def test_import_brings_nothing_heavy_of_its_own():
    subprocess.run([sys.executable, "-W", "error::ImportWarning", "-c", _CODE], check=True)


def test_examples_in_docstrings_are_right():
    import doctest
    import importlib
    import pkgutil

    import keras_transformer.data

    modules = [
        importlib.import_module(f"keras_transformer.data.{module.name}")
        for module in pkgutil.iter_modules(keras_transformer.data.__path__)
    ]
    modules += [
        importlib.import_module(f"keras_transformer.{name}") for name in ("files", "errors")
    ]
    results = [doctest.testmod(module) for module in modules]
    assert sum(result.attempted for result in results) > 10
    assert sum(result.failed for result in results) == 0
