"""Adapting a model: frozen parts, LoRA, another vocabulary, and a second validation set."""

import dataclasses
import shutil

import keras
import numpy as np
import pytest

from keras_transformer.data import SubwordTokenizer, train_sentencepiece
from keras_transformer.decoding import BeamSearch, NoRepeatNgrams, SuppressTokens
from keras_transformer.errors import UserError
from keras_transformer.inference import SentenceProfile
from keras_transformer.inference.translator import Translator
from keras_transformer.layers.effective_weights import all_maps, effective_matrix
from keras_transformer.models import TrainingRecipe, Transformer, get_preset
from keras_transformer.training import (
    enable_lora,
    load_weights_only,
    save_weights_only,
    train,
)
from keras_transformer.training.adaptation import StartingModel, spellings
from keras_transformer.training.plan import make_config, make_recipe
from tests.closeness import assert_close
from tests.composition.answers import answer, tiny_transformer
from tests.composition.test_quantization_and_lora import add_lora, quantize
from tests.layers.harness import reloaded
from tests.layers.oracle_parameters import array
from tests.training.test_trainer import RECIPE, SMALL, WORDS, corpus, run, settings
from tests.training.uncompiled import AtStep

pytestmark = [
    pytest.mark.tensorflow_only("`train` reads its data with tf.data"),
    pytest.mark.usefixtures("uncompiled"),
]
PARTS = ("encoder", "decoder", "embedding")


@pytest.fixture(scope="module")
def general(tmp_path_factory):
    """The directory of a model, and the model."""
    tokenizer = SubwordTokenizer(WORDS)
    model = Transformer.from_preset("tiny", tokenizer.vocab_size, **SMALL)
    return str(Translator(model, tokenizer).save(tmp_path_factory.mktemp("general"))), model


def weights_of(model):
    """The weights of each part of a model."""
    parts = model.encoder, model.decoder, model.target_embedding
    return {name: layer.get_weights() for name, layer in zip(PARTS, parts, strict=True)}


def test_frozen_parts_stay_as_they_were_and_are_trained_again_later(tmp_path, general):
    freeze = ("encoder", "embedding")
    start = {"start_from": general[0], "model": {}, "freeze": freeze}
    recipe, lines, variables = {**RECIPE, "ema_momentum": 0.5}, [], []
    callback = AtStep(1, lambda model: variables.extend(model.optimizer.variables))
    result = run(tmp_path, lines, [callback], **start, recipe=recipe, max_steps=1, streams=2)
    assert f" parameters, {' and '.join(freeze)} frozen, on " in "".join(lines)
    before, after = weights_of(general[1]), weights_of(result.translator.model)
    for name in PARTS:
        is_equal = all(map(np.array_equal, before[name], after[name]))
        assert is_equal == (name in freeze), name
    # The number of steps, and Adam's moments and the average of each trained weight.
    counts = {name: len(weights) for name, weights in before.items()}
    assert len(variables) == 1 + 3 * sum(counts[name] for name in counts.keys() - set(freeze))
    loaded = Translator.load(tmp_path).model
    assert len(loaded.trainable_weights) == len(loaded.weights) == sum(counts.values())


def test_an_adapted_model_keeps_its_limits(tmp_path, general):
    tokenizer = SubwordTokenizer(WORDS)
    limits = {"extra_length": 7, "max_source_length": 40}
    constraints = [NoRepeatNgrams(3), SuppressTokens([1]), SuppressTokens([1, 5])]
    search, profile = BeamSearch(2, constraints=constraints), SentenceProfile(3, 30, True, ("dr",))
    for known, longest, abbreviations in ((None, 39, ()), (profile, 30, ("dr",))):
        limits |= {"search": search, "sentence_profile": known}
        folder = tmp_path / f"general{longest}"
        Translator(general[1], tokenizer, **limits).save(folder)
        start = {"start_from": str(folder), "model": {}, "max_steps": 1}
        translator = run(tmp_path / f"adapted{longest}", **start).translator
        assert (translator.extra_length, translator.max_source_length) == (7, 40)
        found = translator.sentence_profile
        assert (found.longest, found.abbreviations) == (longest, abbreviations)
        assert list(translator.search.constraints) == constraints


def test_the_model_to_start_from_may_go_once_the_training_has_begun(tmp_path, general):
    folder = shutil.copytree(general[0], tmp_path / "general")
    remove = keras.callbacks.LambdaCallback(on_train_begin=lambda _: shutil.rmtree(folder, True))
    start = {"start_from": str(folder), "model": {}, "max_steps": 1}
    run(tmp_path / "adapted", callbacks=[remove], **start)
    assert not folder.exists() and Translator.load(tmp_path / "adapted")


def test_lora_changes_the_maps_by_its_rank_and_resumes(tmp_path, general):
    start = {"start_from": general[0], "model": {}, "lora": 2, "checkpoint_every": 1}
    lines: list = []
    run(tmp_path / "resumed", lines, **start, max_steps=1)
    assert " trained by LoRA, on " in "".join(lines)
    resumed = run(tmp_path / "resumed", **start, max_steps=2).translator.model
    loaded = Translator.load(tmp_path / "resumed").model
    for weight, before in zip(loaded.weights, general[1].weights, strict=True):
        change = np.asarray(weight) - np.asarray(before)
        is_map = weight.path.endswith("/kernel")
        assert np.linalg.matrix_rank(change, tol=1e-5) == 2 if is_map else not change.any()
    ids = np.array([[5, 6, 3]], "int32")
    inputs = {"source": ids, "target": ids}
    assert_close(resumed(inputs), loaded(inputs))


def test_lora_is_for_a_model_and_its_own_vocabulary(tmp_path, general):
    with pytest.raises(ValueError, match="`lora` adapts the model of `start_from`"):
        settings(lora=2)
    start = {"start_from": general[0], "model": {}, "lora": 2}
    with pytest.raises(UserError, match="`lora` trains no embeddings"):
        tokenizer = SubwordTokenizer([*WORDS, "new"])
        train(tmp_path, corpus(0), None, settings(**start), tokenizer)


LINES, NEW_LINES = ["red house", "the red houses", "a blue door"], ["the red door is green"]
# Pieces that only the vocabulary of `NEW_LINES` has -> the pieces of that of `LINES` in them.
SPELLINGS = {
    "red": ["r", "ed"],
    "en": ["e", "<0x6E>"],
    "\u2581door": ["\u2581do", "or"],
    "\u2581green": ["\u2581", "<0x67>", "r", "e", "e", "<0x6E>"],
}


def bpe(lines, size=320, symbols=()):
    return train_sentencepiece(lines, size, allow_fewer=True, symbols=symbols)


def test_a_new_piece_is_spelled_by_the_known_ones_and_a_known_one_is_itself():
    new, known = bpe(NEW_LINES), bpe(LINES, 290)
    pieces, (ids, num_new) = new.pieces(range(new.vocab_size)), spellings(new, [known])
    spelled = {piece: known.pieces(row) for piece, row in zip(pieces, ids, strict=True)}
    assert {piece: spelled.get(piece) for piece in SPELLINGS} == SPELLINGS
    kept = {piece for piece in pieces if piece in known.pieces(range(known.vocab_size))}
    assert all(spelled[piece] == [piece] for piece in kept) and num_new == len(pieces) - len(kept)


@pytest.mark.parametrize("num_vocabularies", [1, 2])
def test_a_model_keeps_its_weights_and_the_rows_of_known_pieces(tmp_path, num_vocabularies):
    known = [bpe(LINES), bpe(LINES[:2])][:num_vocabularies]
    new = [bpe(NEW_LINES), bpe(LINES + NEW_LINES)][:num_vocabularies]
    sizes = [tokenizer.vocab_size for tokenizer in known]
    model = Transformer.from_preset("tiny", *sizes, **SMALL, output_bias=True)
    bias = np.random.default_rng(0).normal(size=sizes[-1]).astype("float32")
    model.target_embedding.bias.assign(bias)
    constraints = NoRepeatNgrams(3), SuppressTokens([1]), SuppressTokens([1, 9])
    search = BeamSearch(2, constraints=constraints)
    Translator(model, *known, search=search).save(tmp_path)
    options, lines = settings(start_from=str(tmp_path), model={}), []
    start = StartingModel(options, [*new, None][:2])
    # Id 9 is another piece now.
    assert start.config["search"].constraints == constraints[:2]
    changed = Transformer(make_config(options, make_recipe(options), *start.vocab_sizes))
    start.copy_weights(changed, lines.append)
    sides = [("target", -1), ("source", 0)][:num_vocabularies]
    for side, number in sides:
        before, after = (getattr(one, f"{side}_embedding") for one in (model, changed))
        rows = [np.array(ids) for ids in spellings(new[number], [known[number]])[0]]
        weights = [(before.embeddings.numpy(), after.embeddings.numpy())]
        weights += [(bias, after.bias.numpy())] if side == "target" else []
        for old, found in weights:
            assert_close(found, [old[row].mean(axis=0) for row in rows])
    assert len(lines) == num_vocabularies and " keep their embeddings; the others" in lines[0]
    for part in ("encoder", "decoder"):
        pair = (getattr(one, part).get_weights() for one in (model, changed))
        assert all(map(np.array_equal, *pair))


@pytest.mark.parametrize(
    "num_known, given, message",
    [
        (1, bpe(LINES), "of the kind of the model to start from, a SubwordTokenizer. Received: a "),
        (
            2,
            SubwordTokenizer(["a"]),
            "a vocabulary for each language: give it two, .* one for both",
        ),
    ],
)
def test_a_vocabulary_that_does_not_suit_the_model_is_refused(tmp_path, num_known, given, message):
    known = [SubwordTokenizer(WORDS)] * num_known
    sizes = [tokenizer.vocab_size for tokenizer in known]
    Translator(Transformer.from_preset("tiny", *sizes, **SMALL), *known).save(tmp_path / "model")
    options = settings(start_from=str(tmp_path / "model"), model={})
    with pytest.raises(UserError, match=message):
        train(tmp_path / "new", corpus(1), None, options, given)
    assert not (tmp_path / "new").exists()


def test_a_second_validation_set_is_scored_like_the_first(tmp_path, general):
    start = {"start_from": general[0], "model": {}, "bleu_every": 2, "evaluate_every": 1}
    lines: list[str] = []
    also_valid = {"same": corpus(2, 8), "other": corpus(3, 8)}
    result = run(tmp_path / "two", lines, **start, max_steps=2, also_valid=also_valid)
    names = ["loss", "perplexity", "accuracy", "bleu"]
    for row in result.history:
        assert [row[f"same_{name}"] for name in names] == [row[f"valid_{name}"] for name in names]
        assert bool(row["other_bleu"]) == bool(row["valid_bleu"]) == (row["step"] != "1")
    assert [row["step"] for row in result.history] == ["0", "1", "2"]
    scores = Translator.load(general[0]).score(*zip(*corpus(3, 8), strict=True))
    loss = -sum(x.log_probability for x in scores) / sum(x.num_tokens for x in scores)
    assert float(result.history[0]["other_loss"]) == pytest.approx(loss, abs=1e-4)
    assert sum(line.startswith("other loss ") for line in lines) == 4  # once for the final weights


def test_the_papers_learning_rate_can_be_asked_for(tmp_path, general):
    lines, start = [], {"start_from": general[0], "preset": None, "model": {}, "max_steps": 1}
    recipe = {"peak_learning_rate": None, "tokens_per_batch": 64}
    options = settings(**start, recipe=recipe)
    assert train(tmp_path, corpus(1), None, options, report=lines.append).steps == 1
    assert "learning rate" not in "".join(lines[:3])  # The rate of the formula is not a setting.


def test_a_second_validation_set_needs_a_first():
    with pytest.raises(ValueError, match="needs `valid_corpus`. Received: general"):
        train("model", corpus(1), None, settings(), also_valid={"general": corpus(2, 8)})


def test_without_a_preset_the_recipe_is_the_models_own_with_a_lower_learning_rate(tmp_path):
    tokenizer, search = SubwordTokenizer(WORDS), BeamSearch(7, 0.9, length_normalization="length")
    model = Transformer.from_preset("tiny", tokenizer.vocab_size, **SMALL)
    own = TrainingRecipe(label_smoothing=0.2, beam_size=3, peak_learning_rate=1.0)
    Translator(model, tokenizer, search=search, recipe=own).save(tmp_path / "own")
    Translator(model, tokenizer, search=search).save(tmp_path / "none")
    adapts = {"peak_learning_rate": 0.1 / SMALL["d_model"], "warmup_steps": 200}
    start = {"start_from": str(tmp_path / "own"), "preset": None, "recipe": {}}
    assert make_recipe(settings(**start)) == dataclasses.replace(own, **adapts)
    given = {"warmup_steps": 9, "label_smoothing": 0.0}
    expected = dataclasses.replace(own, **{**adapts, **given})
    assert make_recipe(settings(**{**start, "recipe": given})) == expected
    muon = make_recipe(settings(**{**start, "recipe": {"optimizer": "muon"}}))
    assert muon.peak_learning_rate == 0.4 / SMALL["d_model"]
    tiny = settings(**{**start, "preset": "tiny"})
    assert make_recipe(tiny) == get_preset("tiny").recipe
    imported = make_recipe(settings(**{**start, "start_from": str(tmp_path / "none")}))
    searches = {"beam_size": 7, "length_penalty": 0.9, "length_normalization": "length"}
    assert imported == TrainingRecipe(**adapts, **searches)


IDS = np.random.default_rng(1).integers(4, 20, (8, 5)).astype("int32")
INPUTS = {"source": IDS, "target": IDS[:, ::-1].copy()}


@pytest.mark.filterwarnings("ignore:Skipping variable loading for optimizer")  # of the factors
@pytest.mark.parametrize("mode", [None, pytest.param("int8", marks=pytest.mark.slow)])
def test_only_the_factors_train_and_the_merged_model_is_saved(mode, tmp_path):
    model = tiny_transformer(dropout=0.0, use_bias=True)
    if mode is not None:
        quantize(model, mode)
    model.trainable = False  # What a recipe of other libraries begins with does no harm.
    before = answer(model, INPUTS)
    enable_lora(model, rank=2)
    np.testing.assert_array_equal(answer(model, INPUTS), before)
    frozen = {w.path: array(w) for w in model.weights if "lora" not in w.name}
    # Two factors for each map: 4 + 2 of the encoder's block, 8 + 2 of the decoder's.
    assert len(model.trainable_weights) == 2 * 16
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.04), loss, run_eagerly=True)
    losses = model.fit(INPUTS, IDS, epochs=3, verbose=0).history["loss"]
    assert losses[-1] < losses[0] - 0.05
    for weight in model.weights:
        if "lora" not in weight.name:
            np.testing.assert_array_equal(array(weight), frozen[weight.path])
    if mode is None:
        again = reloaded(model, tmp_path)
        assert not any("lora" in weight.name for weight in again.weights)
        assert_close(answer(again, INPUTS), answer(model, INPUTS))


def test_weight_files_of_mixed_precision_hold_small_changes(tmp_path):
    """Keras adds the factors in half precision, in which a change of 0.01 % is lost."""
    dtype = "mixed_bfloat16"
    model = Transformer(tiny_transformer().config, dtype=dtype)
    add_lora(model)
    for weight in model.trainable_weights:
        weight.assign(weight * 0.01)
    expected = [array(effective_matrix(part)) for part in all_maps(model)]
    save_weights_only(model, tmp_path / "model.weights.h5")
    assert {part.dtype_policy.name for part in all_maps(model)} == {dtype}
    loaded = tiny_transformer()
    load_weights_only(loaded, tmp_path / "model.weights.h5")
    for part, matrix in zip(all_maps(loaded), expected, strict=True):
        assert_close(array(effective_matrix(part)), matrix)


def test_maps_that_cannot_have_lora_are_refused():
    model = tiny_transformer()
    enable_lora(model)
    with pytest.raises(ValueError, match=r"Received: .*query.* with LoRA"):
        enable_lora(model)
    model = tiny_transformer()
    quantize(model, "float8")
    with pytest.raises(ValueError, match="quantization_mode='float8'"):
        enable_lora(model)
    with pytest.raises(ValueError, match="must contain linear maps"):
        enable_lora(keras.Sequential([keras.Input((2,)), keras.layers.Dropout(0.1)]))


class Head(keras.layers.Layer):
    """A user's layer, which holds its maps as Keras' own layers do."""

    def __init__(self):
        super().__init__()
        self._first = keras.layers.Dense(4)
        self._by_name = {"second": keras.layers.Dense(4)}
        self._others = (keras.layers.Dense(4), keras.layers.Dense(4))

    @property
    def maps(self):
        return [self._first, self._by_name["second"], *self._others]

    def call(self, inputs):
        return sum(dense(inputs) for dense in self.maps)


def test_the_maps_of_a_users_layer_get_factors_wherever_it_holds_them():
    inputs, head = keras.Input((3,)), Head()
    enable_lora(keras.Model(inputs, head(inputs)))
    assert [dense.lora_enabled for dense in head.maps] == [True] * 4
