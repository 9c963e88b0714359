"""Several model directories are one translator; vocabularies that differ are named."""

import json

import numpy as np
import pytest

from keras_transformer.data import SubwordTokenizer
from keras_transformer.decoding import GreedySearch
from keras_transformer.errors import UserError
from keras_transformer.inference.translator import Translator
from keras_transformer.models import Ensemble, Transformer
from tests.tiny_translator import sentence, tiny_model, tiny_tokenizer, tiny_translator

TEXTS = [sentence(1 + seed % 7, seed) for seed in range(6)]


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    """Models of different weights and layers, with settings of their own."""
    folder = tmp_path_factory.mktemp("models")
    settings = {"search": GreedySearch(), "extra_length": 4, "recipe": {"warmup_steps": 7}}
    first = tiny_translator(1, **settings)
    second = Translator(tiny_model(2, num_decoder_layers=2), tiny_tokenizer())
    return [first.save(folder / "first"), second.save(folder / "second")]


@pytest.mark.slow
def test_several_directories_are_an_ensemble_with_the_settings_of_the_first(directories):
    found = Translator.load(directories)
    assert (found.search, found.extra_length, found.recipe) == (GreedySearch(), 4, None)
    assert isinstance(found.model, Ensemble)
    models = [tiny_model(1), tiny_model(2, num_decoder_layers=2)]
    for model, expected in zip(found.model.models, models, strict=True):
        for weight, other in zip(model.get_weights(), expected.get_weights(), strict=True):
            np.testing.assert_array_equal(weight, other)
    answers = found.translate(TEXTS)
    assert answers != Translator.load(directories[0]).translate(TEXTS)
    assert len(Translator.load(map(str, directories)).model.models) == 2
    alone = Translator.load(directories[:1])
    assert isinstance(alone.model, Transformer) and alone.recipe.warmup_steps == 7


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")
def test_a_quantized_model_is_not_written_and_replaces_nothing(directories):
    translator = Translator.load(directories[0])
    translator.model.quantize("int8")
    with pytest.raises(UserError, match="cannot hold a quantized model"):
        translator.save(directories[0])
    assert Translator.load(directories[0]).extra_length == 4


def test_what_is_no_model_directory_is_named(directories, tmp_path):
    with pytest.raises(ValueError, match="no model directory to load"):
        Translator.load([])
    with pytest.raises(UserError, match="config.json"):
        Translator.load(directories[0] / "config.json")
    (tmp_path / "training.json").write_text("{}")
    with pytest.raises(UserError, match="config.json is missing. A training writes it at its end"):
        Translator.load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"format": 7}))
    with pytest.raises(UserError, match="format=7"):
        Translator.load([*directories, tmp_path])


def save_subwords(directory, *vocabularies):
    names = "vocab_size", "target_vocab_size"
    sizes = {name: len(pieces) + 4 for name, pieces in zip(names, vocabularies, strict=False)}
    return Translator(tiny_model(**sizes), *map(SubwordTokenizer, vocabularies)).save(directory)


@pytest.mark.parametrize("first, other, differ", [
    (["abc"], ["acb"], "source .*id 5 is 'b' and 'c'"),
    (["ab"], ["abc"], "source .*6 and 7 pieces"),
    (["ab", "xy"], ["ab", "xz"], "target .*id 5 is 'y' and 'z'"),
    (["ab"], ["ab", "ax"], "target .*id 5 is 'b' and 'x'"),
])  # fmt: skip
def test_other_vocabularies_are_named_with_their_directories(tmp_path, first, other, differ):
    paths = [save_subwords(tmp_path / "one", *first), save_subwords(tmp_path / "two", *first)]
    paths.append(save_subwords(tmp_path / "three", *other))
    with pytest.raises(UserError, match=f"one' and '.*three', whose {differ}") as error:
        Translator.load(paths)
    assert "\n" not in str(error.value)
