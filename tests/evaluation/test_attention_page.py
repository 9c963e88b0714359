"""The page of attention: its weights, its size, and text that looks like markup."""

import base64
import html.parser
import json
import re
import zlib

import numpy as np
import pytest

from keras_transformer.evaluation import AttentionWeights, attention_page, attention_weights
from tests.tiny_translator import sentence, tiny_translator

HOSTILE = tuple("</script><b> <!-- <script> &amp; $x$ '\"` \\u003c 日本\u2028 🙂".split(" "))


def random_weights(source, target, num_layers=2, num_heads=4):
    generator = np.random.default_rng(0)

    def attention(*lengths):
        # Sharper than real attention is, and harder to compress.
        weights = np.exp(generator.normal(0, 2.5, (num_layers, num_heads, *lengths)))
        return weights / weights.sum(axis=-1, keepdims=True)

    m, n = len(target), len(source)
    return AttentionWeights(source, target, attention(n, n), attention(m, m), attention(m, n))


class Reader(html.parser.HTMLParser):
    """Collects the start tags of a page, and its data."""

    def __init__(self, path):
        super().__init__()
        self.tags, self.text, self._script = [], "", None
        self.feed(path.read_text("utf-8"))
        self.data = json.loads(self.text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data):
        if self.tags and self.tags[-1][1].get("id") == "data" and data.strip():
            self.text += data


def unpacked(entry):
    numbers = zlib.decompress(base64.b64decode(entry["values"]))
    return np.frombuffer(numbers, "uint8").reshape(entry["shape"]) / 255


def test_the_page_has_the_weights_and_the_pieces(tmp_path):
    weights = attention_weights(tiny_translator(), sentence(5))
    data = Reader(attention_page(weights, tmp_path / "page.html", title="A title")).data
    for kind in ("encoder", "decoder", "cross"):
        expected, keys, queries = weights.view(kind)
        entry = data[kind]
        assert (tuple(entry["keys"]), tuple(entry["queries"])) == (keys, queries)
        np.testing.assert_allclose(unpacked(entry), expected, atol=0.5 / 255 + 1e-6)
    assert (data["title"], data["attention"]) == ("A title", "cross")
    assert data["layer"] is data["head"] is None


def test_what_is_shown_first_can_be_chosen(tmp_path):
    weights = random_weights(("a", "</s>"), ("b", "</s>"))
    data = Reader(attention_page(weights, tmp_path / "a.html", "encoder", 2, 3)).data
    assert (data["attention"], data["layer"], data["head"]) == ("encoder", 2, 3)
    with pytest.raises(ValueError, match="`layer` must be a number from 1 to 2"):
        attention_page(weights, tmp_path / "b.html", layer=3)
    assert not (tmp_path / "b.html").exists()


@pytest.mark.slow
def test_sixty_words_of_the_big_model_are_less_than_a_megabyte(tmp_path):
    pieces = ("▁subword",) * 80
    path = attention_page(random_weights(pieces, pieces, 6, 16), tmp_path / "page.html")
    assert path.stat().st_size < 1_100_000


def test_text_is_never_markup(tmp_path):
    plain = random_weights(("a",) * len(HOSTILE), ("b", "</s>"))
    hostile = random_weights(HOSTILE, ("b", "</s>"))
    pages = [
        Reader(attention_page(weights, tmp_path / "page.html", title=title))
        for weights, title in ((plain, "a"), (hostile, " ".join(HOSTILE)))
    ]
    assert pages[1].tags == pages[0].tags
    assert tuple(pages[1].data["cross"]["keys"]) == HOSTILE
    assert pages[1].data["title"] == " ".join(HOSTILE)


def test_the_page_needs_no_network(tmp_path):
    path = attention_page(random_weights(("a",), ("b",)), tmp_path / "page.html")
    page = Reader(path)
    assert not re.search(r"https?:|url\(|@import|fetch\(", path.read_text("utf-8"))
    addresses = [value for _, attributes in page.tags
                 for name, value in attributes.items() if name in ("src", "href")]  # fmt: skip
    assert addresses == ["data:,"]
    assert any("default-src 'none'" in (found.get("content") or "") for _, found in page.tags)
