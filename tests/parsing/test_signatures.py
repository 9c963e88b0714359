"""A parser's SavedModel gives the trees of its Parser, whatever the text."""

import contextlib
import json

import keras
import numpy as np
import pytest

from keras_transformer.decoding import BeamSearch, Sampling
from keras_transformer.errors import UserError
from keras_transformer.export import export, export_saved_model
from keras_transformer.parsing import Linearization
from tests.closeness import assert_close
from tests.export.hostile import hostile_texts
from tests.tiny_parser import parsing_model, symbol_tokenizer, tiny_parser
from tests.tiny_translator import WORDS, sentence

tf = pytest.importorskip("tensorflow")
pytest.importorskip("tensorflow_text")
if keras.backend.backend() != "tensorflow":
    pytest.skip("a SavedModel is written on the TensorFlow backend", allow_module_level=True)

TEXTS = [sentence(number, number) for number in (5, 2, 9, 1, 0, 7)]
SEVERAL = BeamSearch(3, 0.3, n_best=3)
BRACKETS = "( a(b) -LRB- \u00a0 )"


@pytest.fixture(scope="module")
def parser():
    return tiny_parser(max_source_length=30)


@pytest.fixture(scope="module")
def loaded(parser, tmp_path_factory):
    return tf.saved_model.load(export_saved_model(parser, tmp_path_factory.mktemp("m") / "parser"))


def written(tree):
    return "(())" if tree is None else str(tree)


def ask(loaded, signature, texts):
    outputs = loaded.signatures[signature](text=tf.constant(texts, tf.string))
    return {name: output.numpy() for name, output in outputs.items()}


def decoded(trees):
    return [tree.decode("utf-8") for tree in trees]


@pytest.mark.slow
def test_trees_scores_and_limits_are_the_parser_s(loaded, parser):
    texts = [*TEXTS, BRACKETS, sentence(60, 1)]
    best, several = ask(loaded, "serving_default", texts), ask(loaded, "n_best", texts)
    assert best["truncated"].tolist() == [*[False] * 7, True]
    assert decoded(best["tree"]) == [written(tree) for tree in parser.parse(texts, SEVERAL)]
    for place, parses in enumerate(parser.parses(texts, SEVERAL)):
        trees, scores = decoded(several["trees"][place]), several["scores"][place]
        assert_close(scores[0], best["score"][place], scale=1.0)
        if parses:
            assert [tree for tree in trees if tree] == [str(parse.tree) for parse in parses]
            assert_close(scores[: len(parses)], [p.score for p in parses], scale=1.0)
        else:
            assert (trees, scores.tolist()) == (["(())"] * 3, [0.0] * 3)
    limits = ask(loaded, "limits", [texts[-1], TEXTS[0], ""])
    assert limits["num_words"].tolist() == [60, 5, 0]
    assert limits["max_tree_tokens"].tolist() == [84, 29, 1]
    settings = json.loads(limits["settings"][0])
    assert settings["linearization"] == parser.linearization.to_dict()


@pytest.mark.slow
def test_hostile_texts(loaded, parser):
    texts = [text[:2_000] for text in hostile_texts(400, seed=3)]
    found, valid = [], {}
    for start in range(0, len(texts), 40):
        found += decoded(ask(loaded, "serving_default", texts[start : start + 40])["tree"])
    for number, text in enumerate(texts):
        with contextlib.suppress(UnicodeDecodeError):
            valid[number] = text.decode("utf-8")
    assert len(texts) / 2 < len(valid) < len(texts)
    expected = parser.parse(list(valid.values()), batch_size=40)
    assert [found[number] for number in valid] == [written(tree) for tree in expected]


SLOW = pytest.mark.slow


@pytest.mark.parametrize("linearization, search, options", [
    (Linearization(labelled_closing=False, joined=True, root_label="TOP"),
     BeamSearch(3, n_best=3), {"position": "learned", "max_length": 10}),
    pytest.param(Linearization(numbers=True), BeamSearch(3), {}, marks=SLOW),
    pytest.param(Linearization(words=True, labelled_closing=False),
                 Sampling(seed=2, num_samples=2), {}, marks=SLOW),
    # Where nothing is found the tree is flat.
    pytest.param(Linearization(tags=True, root_label="TOP"), BeamSearch(2),
                 {"position": "learned", "max_length": 12}, marks=SLOW),
])  # fmt: skip
def test_other_ways_to_write_trees(linearization, search, options, signatures_of, tmp_path):
    signatures_of("n_best", task="parsing")
    target = symbol_tokenizer(linearization, WORDS)
    model = parsing_model(target, **options)
    parser = tiny_parser(linearization=linearization, target=target, model=model)
    loaded = tf.saved_model.load(export_saved_model(parser, tmp_path / "m", search))
    texts = [sentence(10), *TEXTS[:2], BRACKETS]
    found = ask(loaded, "n_best", texts)
    expected = parser.parses(texts, search)
    for trees, parses in zip(found["trees"], expected, strict=True):
        assert decoded(trees)[: len(parses)] == [str(parse.tree) for parse in parses]
    if options:
        assert found["trees"][0][0].startswith(b"(TOP (XX ") and found["scores"][0][0] == -np.inf


@pytest.mark.parametrize("linearization, constrained, message", [
    (None, False, "constrained=False"),
    (Linearization(words=True, tags=True), None, "words=True, tags=True.*not every symbol"),
])  # fmt: skip
def test_a_parser_that_repairs_is_refused(linearization, constrained, message, tmp_path):
    parser = tiny_parser(linearization=linearization, constrained=constrained)
    with pytest.raises(UserError, match=f"must be constrained.*{message}"):
        export_saved_model(parser, tmp_path / "m")


def test_other_formats_do_not_include_the_search(parser, tmp_path):
    pytest.importorskip("ctranslate2", reason="pip install ctranslate2")
    with pytest.raises(UserError, match="CTranslate2 model does not include the search, .* as sav"):
        export(parser, tmp_path / "m", "ctranslate2")
