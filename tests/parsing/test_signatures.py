"""A parser's SavedModel: the Parser's trees, whatever the text, in a process without us."""

import contextlib
import json
import subprocess
import sys

import keras
import numpy as np
import pytest

from keras_transformer.decoding import BeamSearch, GreedySearch, Sampling, SuppressTokens
from keras_transformer.errors import UserError
from keras_transformer.export import export, export_saved_model
from keras_transformer.parsing import Linearization, Parser
from tests.closeness import assert_close
from tests.export.hostile import hostile_texts
from tests.tiny_parser import parsing_model, symbol_tokenizer, tiny_parser
from tests.tiny_translator import WORDS, sentence, tiny_tokenizer

tf = pytest.importorskip("tensorflow")
pytest.importorskip("tensorflow_text")
if keras.backend.backend() != "tensorflow":
    pytest.skip("a SavedModel is written on the TensorFlow backend", allow_module_level=True)

TEXTS = [sentence(number, number) for number in (5, 2, 9, 1, 0, 7)]
SEVERAL = BeamSearch(3, 0.3, n_best=3)
BRACKETS = "( a(b) -LRB- \u00a0 )"

CLIENT = """
import json, sys
import tensorflow as tf
import tensorflow_text

assert not any(name.startswith("keras_transformer") for name in sys.modules)
parse = tf.saved_model.load(sys.argv[1]).signatures["serving_default"]
outputs = parse(text=tf.constant(json.loads(sys.argv[2])))
print(json.dumps([tree.decode() for tree in outputs["tree"].numpy()]))
"""


@pytest.fixture(scope="module")
def parser():
    return tiny_parser(max_source_length=30)


@pytest.fixture(scope="module")
def exported(parser, tmp_path_factory):
    """It works on more than a few sentences in chunks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Parser, "max_batch_tokens", 300)
        return export_saved_model(parser, tmp_path_factory.mktemp("export") / "parser" / "1")


@pytest.fixture(scope="module")
def loaded(exported):
    return tf.saved_model.load(exported)


def written(tree):
    return "(())" if tree is None else str(tree)


def ask(loaded, signature, texts):
    outputs = loaded.signatures[signature](text=tf.constant(texts, tf.string))
    return {name: output.numpy() for name, output in outputs.items()}


def decoded(trees):
    return [tree.decode("utf-8") for tree in trees]


@pytest.mark.slow
def test_a_process_without_us_gives_the_parser_s_trees(exported, parser):
    texts = [*TEXTS, BRACKETS]
    command = [sys.executable, "-c", CLIENT, str(exported), json.dumps(texts)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == [written(tree) for tree in parser.parse(texts, SEVERAL)]
    assert found[4] == "(())"
    assert found[-1].count("-LRB-") == 3 and found[-1].count("-RRB-") == 2
    assert "\u00a0)" in found[-1]


@pytest.mark.slow
def test_scores_and_n_best_are_the_parser_s(loaded, parser):
    best, several = ask(loaded, "serving_default", TEXTS), ask(loaded, "n_best", TEXTS)
    expected = parser.parses(TEXTS, SEVERAL)
    for place, parses in enumerate(expected):
        trees, scores = decoded(several["trees"][place]), several["scores"][place]
        assert trees[0] == best["tree"][place].decode()
        assert_close(scores[0], best["score"][place], scale=1.0)
        if not parses:
            assert (trees, scores.tolist()) == (["(())"] * 3, [0.0] * 3)
            continue
        assert [tree for tree in trees if tree] == [str(parse.tree) for parse in parses]
        assert_close(scores[: len(parses)], [p.score for p in parses], scale=1.0)
    assert not several["truncated"].any()


@pytest.mark.slow
def test_a_long_sentence_keeps_its_words_and_says_that_it_was_cut(loaded, parser):
    text = sentence(60, 1)
    found = ask(loaded, "serving_default", [text, TEXTS[0]])
    assert found["truncated"].tolist() == [True, False]
    assert decoded(found["tree"]) == list(map(str, parser.parse([text, TEXTS[0]], SEVERAL)))
    limits = ask(loaded, "limits", [text, TEXTS[0], ""])
    assert limits["num_words"].tolist() == [60, 5, 0]
    lengths = map(len, tiny_tokenizer().encode_batch([text, TEXTS[0], ""]))
    assert limits["num_tokens"].tolist() == [length + 1 for length in lengths]
    assert limits["max_source_tokens"].tolist() == [30] * 3
    assert limits["max_tree_tokens"].tolist() == [84, 29, 1]
    assert limits["truncated"].tolist() == [True, False, False]
    settings = json.loads(limits["settings"][0])
    assert settings["linearization"] == parser.linearization.to_dict()
    assert settings["search"]["beam_size"] == 3


@pytest.mark.slow
def test_hostile_texts(loaded, parser):
    count = 2_000
    texts = [text[:2_000] for text in hostile_texts(count, seed=3)]
    found = []
    for start in range(0, count, 40):
        outputs = ask(loaded, "serving_default", texts[start : start + 40])
        found += decoded(outputs["tree"])
        assert np.isfinite(outputs["score"]).all()
    valid = {}
    for number, text in enumerate(texts):
        with contextlib.suppress(UnicodeDecodeError):
            valid[number] = text.decode("utf-8")
    assert count / 2 < len(valid) < count
    expected = parser.parse(list(valid.values()), batch_size=40)
    assert [found[number] for number in valid] == [written(tree) for tree in expected]


@pytest.mark.parametrize("linearization,search", [
    (Linearization(tags=True), GreedySearch(constraints=[SuppressTokens([5])])),  # (NP
    (Linearization(words=True, labelled_closing=False), BeamSearch(4, 0.3, n_best=2)),
    (Linearization(numbers=True), BeamSearch(3)),
    (Linearization(max_unary=1), Sampling(seed=2, num_samples=2)),
])  # fmt: skip
@pytest.mark.slow
def test_other_ways_to_write_trees(linearization, search, tmp_path):
    target = symbol_tokenizer(linearization, WORDS)
    model = parsing_model(target)
    parser = tiny_parser(linearization=linearization, target=target, model=model)
    loaded = tf.saved_model.load(export_saved_model(parser, tmp_path / "m", search))
    found = ask(loaded, "n_best", [*TEXTS, BRACKETS])
    expected = parser.parses([*TEXTS, BRACKETS], search)
    for trees, parses in zip(found["trees"], expected, strict=True):
        assert decoded(trees)[: len(parses)] == [str(parse.tree) for parse in parses]


@pytest.mark.slow
def test_where_nothing_is_found_the_tree_is_flat(tmp_path):
    target = symbol_tokenizer()
    model = parsing_model(target, position="learned", max_length=12)
    linearization = Linearization(root_label="TOP")
    parser = tiny_parser(linearization=linearization, target=target, model=model)
    loaded = tf.saved_model.load(export_saved_model(parser, tmp_path / "m", BeamSearch(2)))
    texts = [sentence(3), sentence(10), ""]
    found = ask(loaded, "n_best", texts)
    expected = parser.parse(texts, BeamSearch(2))
    assert decoded(found["trees"][:, 0]) == [written(tree) for tree in expected]
    assert found["trees"][1][0].startswith(b"(TOP (XX ") and found["trees"][1][1] == b""
    assert found["scores"][1].tolist() == [-np.inf] * 2


@pytest.mark.parametrize("linearization,constrained,message", [
    (None, False, "constrained=False"),
    (Linearization(words=True, tags=True), None, "words=True, tags=True.*not every symbol"),
])  # fmt: skip
def test_a_parser_that_repairs_is_refused(linearization, constrained, message, tmp_path):
    parser = tiny_parser(linearization=linearization, constrained=constrained)
    with pytest.raises(UserError, match=f"must be constrained.*{message}"):
        export_saved_model(parser, tmp_path / "m")
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("name,package,title", [
    ("ctranslate2", "ctranslate2", "CTranslate2 model"), ("litert", "tensorflow", "LiteRT export"),
])  # fmt: skip
def test_other_formats_do_not_include_the_search(name, package, title, parser, tmp_path):
    pytest.importorskip(package, reason=f"pip install {package}")
    with pytest.raises(UserError, match=f"{title} does not include the search, .* as saved_model"):
        export(parser, tmp_path / "m", name)
