"""Attention: the oracle's weights, for the pieces of a text and of its answer, and their page."""

import base64
import functools
import html.parser
import json
import re
import zlib

import numpy as np
import pytest

from keras_transformer.data.tokenizer import BOS_ID, EOS_ID
from keras_transformer.errors import UserError
from keras_transformer.evaluation import AttentionWeights, attention_page, attention_weights
from keras_transformer.inference.translator import Translator
from tests.closeness import assert_close
from tests.layers.oracle_parameters import randomize, transformer_parameters
from tests.oracle import transformer as oracle
from tests.tiny_parser import tiny_parser
from tests.tiny_translator import sentence, tiny_model, tiny_tokenizer, tiny_translator

TEXT, ANSWER = sentence(5, 1), sentence(4, 2)
KINDS = ("encoder", "decoder", "cross")
WINDOW = {"sliding_window": 3}
FLASH_WINDOW = {"flash_attention": True, **WINDOW}


def translator(**overrides):
    model = tiny_model(num_encoder_layers=2, num_decoder_layers=3, **overrides)
    randomize(model)
    return Translator(model, tiny_tokenizer(), extra_length=12)


@functools.cache
def weights_of(**overrides):
    return attention_weights(translator(**overrides), TEXT, ANSWER)


def ids_of(pipeline, text):
    return [*pipeline.source_tokenizer.encode(text), EOS_ID]


def test_weights_equal_the_oracles(monkeypatch):
    pipeline = translator()
    found = attention_weights(pipeline, TEXT, ANSWER)
    computed, attend = [], oracle.multi_head_attention

    def record(*arguments, **options):
        outputs, weights = attend(*arguments, **options)
        computed.append(weights)
        return outputs, weights

    monkeypatch.setattr(oracle, "multi_head_attention", record)
    source, labels = ids_of(pipeline, TEXT), ids_of(pipeline, ANSWER)
    target = [BOS_ID, *labels[:-1]]
    oracle.transformer(transformer_parameters(pipeline.model), 4, source, target)
    assert_close(found.encoder, computed[:2])
    assert_close(found.decoder, computed[2::2])
    assert_close(found.cross, computed[3::2])
    assert found.source == tuple(pipeline.source_tokenizer.pieces(source))
    assert found.target == tuple(pipeline.target_tokenizer.pieces(labels))


@pytest.mark.parametrize("variant", [
    FLASH_WINDOW, {"position": "relative", "norm": "pre", "num_heads": 2},
])  # fmt: skip
def test_rows_of_every_variant_sum_to_one(variant):
    found = weights_of(**variant)
    num_heads, source, target = variant.get("num_heads", 4), len(found.source), len(found.target)
    assert found.encoder.shape == (2, num_heads, source, source)
    assert found.decoder.shape == (3, num_heads, target, target)
    assert found.cross.shape == (3, num_heads, target, source)
    for kind in KINDS:
        assert_close(getattr(found, kind).sum(axis=-1), 1.0)
    assert not np.triu(found.decoder, k=1).any()  # No piece attends to a later one.


def test_the_first_layers_window_is_the_middle_of_all_weights():
    whole, window = weights_of(), weights_of(**WINDOW)
    for kind in ("encoder", "decoder"):
        weights = getattr(whole, kind)[0]
        places = np.arange(weights.shape[-1])
        inside = np.where(np.abs(np.subtract.outer(places, places)) < 3, weights, 0.0)
        expected = inside / inside.sum(axis=-1, keepdims=True)
        assert_close(getattr(window, kind)[0], expected)


def test_without_a_target_it_is_the_answer_of_the_search():
    pipeline = tiny_translator()
    [[best, *_]] = pipeline.hypotheses([TEXT])
    found = attention_weights(pipeline, TEXT)
    assert found.target == tuple(pipeline.target_tokenizer.pieces(best.tokens))


def test_what_cannot_be_drawn_is_named():
    pipeline = tiny_translator(max_source_length=8)
    with pytest.raises(UserError, match="text must have words. Received: ' '"):
        attention_weights(pipeline, " ")
    with pytest.raises(UserError, match="text must have at most 7 subwords.* Received: 100 subw"):
        attention_weights(pipeline, " a" * 100)
    parser = tiny_parser()
    for tree, message in (
        ("(S (XX a) (XX cat))", "words 'a dog'. Received: 'a cat'"),
        ("(S", "open"),
    ):
        with pytest.raises(UserError, match=message):
            attention_weights(parser, "a dog", tree)


class TestView:
    weights = AttentionWeights(
        ("a", "b", "</s>"),
        ("x", "</s>"),
        *(np.random.default_rng(0).random((2, 4, *shape)) for shape in ((3, 3), (2, 2), (2, 3))),
    )

    def test_layers_and_heads_count_from_one(self):
        found, keys, queries = self.weights.view("cross", 2, 3)
        np.testing.assert_array_equal(found, self.weights.cross[1, 2])
        assert (keys, queries) == (("a", "b", "</s>"), ("x", "</s>"))
        assert self.weights.view("encoder", 1)[0].shape == (4, 3, 3)
        assert self.weights.view("encoder")[1:] == (self.weights.source,) * 2
        # The decoder reads what it has written.
        assert self.weights.view("decoder", 1, 1)[1:] == (("<s>", "x"), ("x", "</s>"))

    @pytest.mark.parametrize(("arguments", "message"), [
        (("both",), "`attention` must be one of .* Received: attention='both'"),
        (("cross", 1, 5), "`head` must be a number from 1 to 4. Received: head=5"),
        (("cross", None, 1), "A head needs a layer. Received: head=1"),
    ])  # fmt: skip
    def test_other_numbers_are_refused(self, arguments, message):
        with pytest.raises(ValueError, match=message):
            self.weights.view(*arguments)


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
    weights = weights_of()
    data = Reader(attention_page(weights, tmp_path / "page.html", title="A title")).data
    for kind in ("encoder", "decoder", "cross"):
        expected, keys, queries = weights.view(kind)
        entry = data[kind]
        assert (tuple(entry["keys"]), tuple(entry["queries"])) == (keys, queries)
        np.testing.assert_allclose(unpacked(entry), expected, atol=0.5 / 255 + 1e-6)
    assert (data["title"], data["attention"]) == ("A title", "cross")
    assert data["layer"] is data["head"] is None


def test_the_page_needs_no_network_and_text_is_never_markup(tmp_path):
    title = " ".join(HOSTILE)
    path = attention_page(random_weights(HOSTILE, ("b",)), tmp_path / "page.html", title=title)
    page = Reader(path)
    assert page.data["title"] == title and page.data["cross"]["keys"] == list(HOSTILE)
    assert not re.search(r"https?:|url\(|@import|fetch\(", path.read_text("utf-8"))
    addresses = [value for _, attributes in page.tags
                 for name, value in attributes.items() if name in ("src", "href")]  # fmt: skip
    assert addresses == ["data:,"]
    assert any("default-src 'none'" in (found.get("content") or "") for _, found in page.tags)
