"""The examples with a prompt in docs/*.md run and print what they say."""

import doctest
import re

import pytest

from tests.docs.public_names import ROOT

EXAMPLES = {
    path.name: "\n".join(blocks)
    for path in sorted((ROOT / "docs").glob("*.md"))
    if (blocks := re.findall(r"^```python\n(>>> .*?)^```$", path.read_text("utf-8"), re.M | re.S))
}


@pytest.mark.parametrize("page", EXAMPLES)
def test_the_examples_of_a_page_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    test = doctest.DocTestParser().get_doctest(EXAMPLES[page], {}, page, page, 0)
    output = []
    results = doctest.DocTestRunner().run(test, out=output.append)
    assert results.attempted and not results.failed, "".join(output)


def test_pages_have_examples():
    assert "parsing.md" in EXAMPLES
