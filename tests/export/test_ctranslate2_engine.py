"""A translator that searches in CTranslate2 answers as in Keras, or refuses what that lacks."""

import keras
import numpy as np
import pytest

from keras_transformer.decoding import BeamSearch, GreedySearch, MinimumLength, Sampling
from keras_transformer.errors import UserError
from keras_transformer.export import CTranslate2Engine
from keras_transformer.inference import Glossary, Translator
from keras_transformer.models import Ensemble
from keras_transformer.serving import ServerSettings
from keras_transformer.serving.app import Server
from keras_transformer.serving.models import find_models
from keras_transformer.training import enable_lora
from tests.closeness import assert_close
from tests.export.models import BOS_ID, EOS_ID, TEXTS, random_translator
from tests.inference.test_languages import make_translator
from tests.tiny_parser import tiny_parser

pytest.importorskip("ctranslate2", reason="pip install ctranslate2")


def with_engine():
    translator = random_translator()
    translator.engine = CTranslate2Engine(translator)
    return translator


@pytest.fixture
def searches(monkeypatch):
    """The searches of all engines so far: equal answers do not show that an engine gave them."""
    found, search = [], CTranslate2Engine.search

    def spy(*arguments):
        found.append(arguments)
        return search(*arguments)

    monkeypatch.setattr(CTranslate2Engine, "search", spy)
    return found


def exact(translator, texts, hypotheses):
    """The log-probability of each hypothesis in one pass of the model, without a search."""
    values = []
    for text, hypothesis in zip(texts, hypotheses, strict=True):
        source = [[*translator.source_tokenizer.encode(text), EOS_ID]]
        inputs = {"source": source, "target": [[BOS_ID, *hypothesis.tokens[:-1]]]}
        inputs = {side: np.array(ids) for side, ids in inputs.items()}
        chances = keras.ops.log_softmax(translator.model(inputs, training=False)[0])
        chances = keras.ops.convert_to_numpy(chances)
        values.append(chances[range(len(hypothesis.tokens)), hypothesis.tokens].sum())
    return values


@pytest.mark.parametrize(
    "search", [GreedySearch(), BeamSearch(4, n_best=3), BeamSearch(4, patience=0.3)], ids=str
)
def test_answers_and_scores(search, searches):
    """Greedy answers are those of Keras; all log-probabilities are the model's own."""
    translator = with_engine()
    hypotheses = translator.hypotheses([*TEXTS, ""], search)
    assert searches
    answers = [best.text for best, *_ in hypotheses]
    assert len(set(answers)) > 5 and answers[-1] == ""
    for rank in range(getattr(search, "n_best", 1)):
        ranked = [found[rank] for found in hypotheses[:-1]]
        assert_close([one.log_probability for one in ranked], exact(translator, TEXTS, ranked))
    assert all(found == sorted(found, key=lambda one: -one.score) for found in hypotheses)
    translator.engine = None
    in_keras = translator.hypotheses([*TEXTS, ""], search)
    if isinstance(search, GreedySearch):
        assert answers == [best.text for best, *_ in in_keras]
    num_equal = 0
    for found, expected in zip(hypotheses, in_keras, strict=True):
        by_tokens = {one.tokens: one.score for one in expected}
        common = [one for one in found if one.tokens in by_tokens]
        num_equal += len(common)
        assert_close([one.score for one in common], [by_tokens[one.tokens] for one in common])
    assert num_equal > sum(map(len, hypotheses)) / 3


def test_prefixes_and_long_texts(searches):
    translator = with_engine()
    long = " ".join(TEXTS)
    texts, prefixes = [*TEXTS[:3], long], ["ba", "", "da", ""]
    translator.max_source_length = 24
    in_engine = translator.translate(texts, prefixes=prefixes)
    assert searches
    translator.engine = None
    assert in_engine == translator.translate(texts, prefixes=prefixes)
    assert in_engine[0].startswith("ba") and translator.num_split == 2


def test_languages(searches):
    """Answers begin with the language that is chosen, which has no part in the scores."""
    translator = make_translator().with_languages("fr", "zho_Hant")
    in_keras = translator.hypotheses(TEXTS, GreedySearch())
    translator.engine = CTranslate2Engine(translator)
    chosen = translator.hypotheses(TEXTS, GreedySearch())
    assert searches
    assert [best.tokens for [best] in chosen] == [best.tokens for [best] in in_keras]
    scores = [[best.score for [best] in found] for found in (chosen, in_keras)]
    assert_close(*scores)
    other = translator.with_languages("en", "fra_Latn").translate(TEXTS, GreedySearch())
    assert other != [best.text for [best] in chosen]


def test_other_weights():
    """The engine has the weights of its making: with LoRA merged, or in int8."""
    translator = random_translator()
    enable_lora(translator.model, 2)
    generator = np.random.default_rng(1)
    for weight in translator.model.trainable_weights:
        weight.assign(weight + generator.normal(0.0, 0.05, weight.shape))
    expected = translator.translate(TEXTS)
    translator.engine = CTranslate2Engine(translator)
    assert translator.translate(TEXTS) == expected
    translator.engine = CTranslate2Engine(translator, "int8")
    best = [best for best, *_ in translator.hypotheses(TEXTS)]
    rounded, plain = [one.log_probability for one in best], exact(translator, TEXTS, best)
    assert rounded != plain
    assert np.corrcoef(rounded, plain)[0, 1] > 0.98


@pytest.mark.parametrize(
    "refused, message",
    [
        (lambda t: t.translate(["a"], Sampling()), "without constraints. Received: Sampling"),
        (lambda t: t.translate(["a"], BeamSearch(constraints=[MinimumLength(3)])), "MinimumLength"),
        (lambda t: t.translate(["a b"], glossary=Glossary({"a": "c"})), "no glossaries"),
        (
            lambda t: setattr(t, "glossary", Glossary({"a": "c"})) or CTranslate2Engine(t),
            "no gloss",
        ),
        (
            lambda t: CTranslate2Engine(Translator(Ensemble([t.model] * 2), t.source_tokenizer)),
            "of one model. Received: Ensemble",
        ),
        (lambda t: CTranslate2Engine(tiny_parser()), "Received: Parser"),
        (lambda t: CTranslate2Engine(t, "int3"), "quantization"),
    ],
)
def test_what_the_engine_lacks(refused, message):
    with pytest.raises(UserError, match=message):
        refused(with_engine())


@pytest.mark.tensorflow_only("the server needs it")
def test_the_server(tmp_path, searches):
    translator = with_engine()
    translator.save(tmp_path / "model")
    [model] = find_models([str(tmp_path / "model")], engine="ctranslate2")["model"].values()
    Server({"model": {1: model}}, ServerSettings(streams=2))
    model.load()
    texts = [*TEXTS, ""]
    answers = model.signatures["serving_default"]({"text": [text.encode() for text in texts]})
    # Batches of two requests are searched at the same time.
    assert searches[0][0]._engine.num_translators == 2
    expected = [best for best, *_ in translator.hypotheses(texts)]
    assert [text.decode() for text in answers["translation"]] == [one.text for one in expected]
    assert_close(answers["score"], [one.score for one in expected])
    assert model.signatures["n_best"]({"text": [b"a b"]})["scores"].shape == (1, 1)


@pytest.mark.tensorflow_only("the server needs it")
@pytest.mark.parametrize(
    "search", [Sampling(), BeamSearch(constraints=[MinimumLength(3)])], ids=str
)
def test_the_server_refuses_a_search_at_its_start(search, tmp_path):
    translator = random_translator()
    translator.search = search
    translator.save(tmp_path / "model")
    [model] = find_models([str(tmp_path / "model")], engine="ctranslate2")["model"].values()
    with pytest.raises(UserError, match="without constraints"):
        model.load()
