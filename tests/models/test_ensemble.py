"""An ensemble decodes and scores by the renormalized average of its models' log-probabilities."""

import keras
import pytest
from keras import ops

from keras_transformer.data.tokenizer import BOS_ID, EOS_ID
from keras_transformer.decoding import GreedySearch
from keras_transformer.errors import UserError
from keras_transformer.inference.translator import Translator
from keras_transformer.models import Ensemble
from keras_transformer.models.ensemble import copy_of
from tests.closeness import assert_all_close, assert_close
from tests.oracle.search import greedy_search, log_softmax
from tests.tiny_translator import sentence, tiny_model, tiny_tokenizer

TEXTS = [sentence(1 + seed % 7, seed) for seed in range(12)]


def log_probabilities(model, source, prefix):
    """The model's own log-probabilities of the next token, in float64 and plain Python."""
    ids = {"source": ops.array([source]), "target": ops.array([prefix])}
    return log_softmax(ops.convert_to_numpy(model(ids, training=False))[0, -1].tolist())


def averaged(models, source, prefix):
    """The average of the models' log-probabilities, renormalized."""
    each = [log_probabilities(model, source, prefix) for model in models]
    return log_softmax([sum(values) / len(models) for values in zip(*each, strict=True)])


@pytest.fixture(scope="module")
def models():
    return [tiny_model(1), tiny_model(2, num_decoder_layers=2, norm="pre")]


@pytest.fixture(scope="module")
def translator(models):
    return Translator(Ensemble(models), tiny_tokenizer(), search=GreedySearch(), extra_length=4)


@pytest.mark.slow
def test_greedy_search_takes_the_best_of_the_average(models, translator):
    for text, found in zip(TEXTS[:2], translator.hypotheses(TEXTS[:2]), strict=True):
        source = [*translator.source_tokenizer.encode(text), EOS_ID]

        def following(tokens, source=source):
            return averaged(models, source, [BOS_ID, *tokens])

        [expected] = greedy_search(following, len(source) - 1 + 4, EOS_ID)
        assert found[0].tokens == expected.tokens
        assert_close(found[0].log_probability, expected.log_probability, scale=1.0)


def test_attention_has_the_heads_of_all_models(models):
    source, target = ops.array([[5, 6, 7, EOS_ID]]), ops.array([[BOS_ID, 8, 9]])
    found = Ensemble(models).attention_scores(source, target)["cross"]
    last = [model.attention_scores(source, target)["cross"][-1] for model in models]
    assert len(found) == 1
    found, last = found[0], ops.concatenate(last, axis=1)
    assert_close(ops.convert_to_numpy(found), ops.convert_to_numpy(last))


def test_other_vocabularies_are_refused():
    models = [tiny_model(), tiny_model(target_vocab_size=300)]
    with pytest.raises(ValueError, match=r"same vocabularies.*\(320, 320\), \(320, 300\)"):
        Ensemble(models)
    with pytest.raises(ValueError, match="at least one model"):
        Ensemble([])


def test_it_is_not_saved_as_one_model(translator, tmp_path):
    with pytest.raises(UserError, match="save each of its models"):
        translator.save(tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_a_copy_draws_no_initial_values(monkeypatch):
    """They would take most of its time, and be overwritten."""
    model = tiny_model(1)

    def draw(*args, **kwargs):
        raise AssertionError("an initial value is drawn")

    for name in ("RandomNormal", "VarianceScaling"):
        monkeypatch.setattr(getattr(keras.initializers, name), "__call__", draw)
    assert_all_close(copy_of(model).get_weights(), model.get_weights())
