"""A bridge without its library says how to get it; the examples and figures of the docs hold."""

import pathlib
import re
import sys

import pytest

from keras_transformer import bridges

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "bridges.md"
EXAMPLES = PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("peer, extra, functions", [
    ("torch", "torch", (bridges.from_torch, bridges.to_torch)),
    ("transformers", "oracles", (bridges.from_marian, bridges.to_marian)),
    ("keras_hub", "oracles", (bridges.from_keras_hub, bridges.to_keras_hub)),
])  # fmt: skip
def test_a_missing_library_is_named_with_what_installs_it(monkeypatch, peer, extra, functions):
    monkeypatch.setitem(sys.modules, peer, None)
    for function in functions:
        with pytest.raises(ImportError, match=rf"needs {peer}: .*pip install '\.\[{extra}\]'"):
            function(None)


@pytest.mark.parametrize("peer, heading", [
    ("torch", "torch"), ("transformers", "Marian"), ("keras_hub", "KerasHub"),
])  # fmt: skip
def test_the_examples_of_the_documentation_run(peer, heading, capsys):
    pytest.importorskip(peer)
    pytest.importorskip("torch")
    (section,) = re.findall(rf"^## {heading}.*?```python\n(.*?)```", EXAMPLES, re.DOTALL | re.M)
    exec(section, {})
    printed = capsys.readouterr().out
    if peer == "transformers":
        assert printed.startswith("tensor([[ 2,")
    else:
        assert float(printed) <= 1e-5
