"""A bridge imports its library when it is called, and says how to get it."""

import ast
import pathlib
import re
import sys

import pytest

from keras_transformer import bridges
from tests.bridges.comparison import assert_close
from tests.bridges.errors import BRIDGE_ERRORS
from tests.precision.gradients import has_float64

PACKAGE = pathlib.Path(bridges.__file__).parent
EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "docs" / "bridges.md"


@pytest.mark.parametrize("function,peer,extra", [
    (bridges.from_torch, "torch", "torch"),
    (bridges.to_torch, "torch", "torch"),
    (bridges.from_marian, "transformers", "oracles"),
    (bridges.to_marian, "transformers", "oracles"),
    (bridges.from_keras_hub, "keras_hub", "oracles"),
    (bridges.to_keras_hub, "keras_hub", "oracles"),
])  # fmt: skip
def test_a_missing_library_is_named_with_what_installs_it(monkeypatch, function, peer, extra):
    monkeypatch.setitem(sys.modules, peer, None)
    with pytest.raises(ImportError, match=rf"needs {peer}: .*pip install '\.\[{extra}\]'"):
        function(None)


def test_no_library_is_imported_before():
    for path in PACKAGE.glob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            names = [alias.name for alias in getattr(node, "names", [])]
            names.append(getattr(node, "module", None) or "")
            assert not {"torch", "transformers", "keras_hub"} & set(names), path


@pytest.mark.parametrize("peer", ["torch", "transformers", "keras_hub"])
def test_the_examples_of_the_documentation_run(peer, capsys):
    pytest.importorskip(peer)
    pytest.importorskip("torch")
    sections = re.split(r"^## ", EXAMPLES.read_text(encoding="utf-8"), flags=re.MULTILINE)
    (section,) = (one for one in sections if one.startswith(_HEADINGS[peer]))
    exec(re.search(r"```python\n(.*?)```", section, re.DOTALL).group(1), {})
    printed = capsys.readouterr().out
    if peer == "transformers":
        assert printed.startswith("tensor([[ 2,")
    else:
        assert float(printed) <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("name", BRIDGE_ERRORS)
def test_the_figures_of_the_table_are_within_the_tolerance(name):
    pytest.importorskip(name.split(".")[0])
    dtype = name.split(", ")[-1]
    if dtype == "float64" and not has_float64():
        pytest.skip("Keras computes float64 in part in float32 on this backend")
    assert_close(BRIDGE_ERRORS[name](), dtype)


_HEADINGS = {"torch": "torch", "transformers": "Marian", "keras_hub": "KerasHub"}
