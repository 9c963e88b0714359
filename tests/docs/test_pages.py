"""The examples with a prompt in docs/*.md run and print what they say."""

import doctest
import re

import pytest

from tests.docs.public_names import ROOT

EXAMPLES = {
    path.name: blocks
    for path in sorted((ROOT / "docs").glob("*.md"))
    if (blocks := re.findall(r"^```python\n(>>> .*?)^```$", path.read_text("utf-8"), re.M | re.S))
}
# What makes a model takes long.
MODELS = re.compile(r"\btrain\(|\bTransformer\b")


@pytest.mark.parametrize("with_models", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("page", EXAMPLES)
def test_the_examples_of_a_page_run(page, with_models, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = [block for block in EXAMPLES[page] if with_models or not MODELS.search(block)]
    test = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, page, page, 0)
    output = []
    results = doctest.DocTestRunner().run(test, out=output.append)
    assert results.attempted and not results.failed, "".join(output)
