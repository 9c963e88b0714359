"""Adapting a model: frozen parts, another vocabulary, and a second validation set."""

import dataclasses

import numpy as np
import pytest

from keras_transformer.data import (
    MappedTokenizer,
    PairsCorpus,
    SubwordTokenizer,
    train_sentencepiece,
)
from keras_transformer.decoding import BeamSearch
from keras_transformer.errors import UserError
from keras_transformer.inference import SentenceProfile
from keras_transformer.inference.translator import Translator
from keras_transformer.models import TrainingRecipe, Transformer, get_preset
from keras_transformer.training import train
from keras_transformer.training.plan import make_config, make_recipe
from keras_transformer.training.starting_model import StartingModel, spellings
from tests.closeness import assert_all_close, assert_close
from tests.data.test_lookup_tokenizers import learned
from tests.training.test_trainer import RECIPE, SMALL, WORDS, corpus, run, settings
from tests.training.uncompiled import AtStep, interrupt

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


@pytest.mark.parametrize(
    "freeze", [("encoder",), pytest.param(("decoder", "embedding"), marks=pytest.mark.slow)]
)
def test_frozen_parts_stay_as_they_were_and_are_trained_again_later(tmp_path, general, freeze):
    start = {"start_from": general[0], "model": {}, "freeze": freeze}
    recipe, lines, variables = {**RECIPE, "ema_momentum": 0.5}, [], []
    callback = AtStep(1, lambda model: variables.extend(model.optimizer.variables))
    result = run(tmp_path, lines, [callback], **start, recipe=recipe, max_steps=2, streams=2)
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


def test_lora_changes_the_maps_by_its_rank_and_resumes(tmp_path, general):
    start = {"start_from": general[0], "model": {}, "lora": 2, "checkpoint_every": 1}
    lines: list = []
    run(tmp_path / "resumed", lines, **start, max_steps=1)
    assert " trained by LoRA, on " in "".join(lines)
    resumed = run(tmp_path / "resumed", **start, max_steps=3).translator.model
    whole = run(tmp_path / "whole", **start, max_steps=3).translator.model
    loaded = Translator.load(tmp_path / "whole").model
    for weight, again, before in zip(
        loaded.weights, Translator.load(tmp_path / "resumed").model.weights,
        general[1].weights, strict=True,
    ):  # fmt: skip
        np.testing.assert_array_equal(weight, again)
        change = np.asarray(weight) - np.asarray(before)
        is_map = weight.path.endswith("/kernel")
        assert np.linalg.matrix_rank(change, tol=1e-5) == 2 if is_map else not change.any()
    ids = np.array([[5, 6, 3]], "int32")
    inputs = {"source": ids, "target": ids}
    for model in (whole, resumed):
        assert_close(model(inputs), loaded(inputs))


def test_the_moving_average_of_lora_is_of_the_factors_alone(tmp_path, general):
    """An average with almost no memory scores as the last step does."""
    recipe, lines = {**RECIPE, "ema_momentum": 1e-6, "peak_learning_rate": 0.5}, []
    start = {"start_from": general[0], "model": {}, "lora": 2, "recipe": recipe}
    run(tmp_path, lines, **start, max_steps=3, average_windows=(1,))
    losses = dict(line.split(": validation loss ") for line in lines if ": validation loss" in line)
    assert losses["step 3"] == losses["moving average of the weights"]


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
    assert {"<pad>", "</s>", "<0x41>", "\u2581the", "r"} < kept
    assert all(spelled[piece] == [piece] for piece in kept) and num_new == len(pieces) - len(kept)
    for piece, row in zip(pieces[260:], ids[260:], strict=True):
        assert known.decode(row).strip() == piece.replace("\u2581", " ").strip()


@pytest.mark.parametrize("declared", [None, ("-",)])
def test_the_tags_of_the_model_stay_tags(tmp_path, declared):
    tokenizer = bpe(LINES, symbols=(">>fra<<", "-"))
    model = Transformer.from_preset("tiny", tokenizer.vocab_size, **SMALL)
    profile = declared and SentenceProfile(1, 1, True, (), declared)
    Translator(model, tokenizer, sentence_profile=profile).save(tmp_path)
    start = StartingModel(settings(start_from=str(tmp_path), model={}), (None, None))
    found = start.with_tags(SentenceProfile(1, 1, True, (), ("<new>",)))
    assert found.tags == tuple(sorted({"<new>", *(declared or (">>fra<<",))}))


def test_words_that_a_vocabulary_of_words_lacks_are_spelled_by_the_unknown_one():
    known, new = SubwordTokenizer(["a", "b"]), SubwordTokenizer(["c", "b"])
    assert spellings(new, [known]) == ([[0], [1], [2], [3], [1], [5]], 1)


@pytest.mark.parametrize("num_vocabularies", [1, 2])
def test_a_model_keeps_its_weights_and_the_rows_of_known_pieces(tmp_path, num_vocabularies):
    known = [bpe(LINES), bpe(LINES[:2])][:num_vocabularies]
    new = [bpe(NEW_LINES), bpe(LINES + NEW_LINES)][:num_vocabularies]
    sizes = [tokenizer.vocab_size for tokenizer in known]
    model = Transformer.from_preset("tiny", *sizes, **SMALL, output_bias=True)
    bias = np.random.default_rng(0).normal(size=sizes[-1]).astype("float32")
    model.target_embedding.bias.assign(bias)
    Translator(model, *known).save(tmp_path)
    options, lines = settings(start_from=str(tmp_path), model={}), []
    start = StartingModel(options, [*new, None][:2])
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


ORIGIN = {"name": "a published model", "license": "cc-by-4.0"}


@pytest.fixture
def imported(tmp_path):
    """The directory of a model with two tokenizers of one vocabulary, like a published one."""
    joint = [">>deu<<", *dict.fromkeys("".join(LINES)), "\u2581", "\u2581the", "\u2581red"]
    tokenizers = [
        MappedTokenizer(learned(LINES * 3), joint, languages=joint[:1]),
        MappedTokenizer(learned(NEW_LINES * 3), joint),
    ]
    size = tokenizers[0].vocab_size
    model = Transformer.from_preset("tiny", size, **SMALL, output_bias=True)
    Translator(model, *tokenizers, origin=ORIGIN).save(tmp_path / "imported")
    return str(tmp_path / "imported"), model, tokenizers


@pytest.mark.slow
def test_a_model_with_two_tokenizers_of_one_vocabulary_is_adapted_with_both(tmp_path, imported):
    directory, model, tokenizers = imported
    pairs = PairsCorpus([(f">>deu<< {line}", line) for line in LINES])
    still = {**RECIPE, "peak_learning_rate": 1e-9}
    options = settings(start_from=directory, model={}, recipe=still, max_steps=1, bleu_every=1)
    train(tmp_path / "model", pairs, pairs, options)
    adapted = Translator.load(tmp_path / "model")
    assert adapted.model.config == model.config and adapted.model.config.target_vocab_size is None
    assert adapted.origin == ORIGIN
    for before, after in zip(tokenizers, adapted.tokenizers, strict=True):
        assert after._file_content() == before._file_content()
    assert_all_close(adapted.model.get_weights(), model.get_weights())
    with pytest.raises(UserError, match="must begin with the code of its target language: >>deu<<"):
        train(tmp_path / "new", corpus(1), None, options)


def test_an_imported_model_takes_a_vocabulary_for_both_languages(imported):
    directory, model, tokenizers = imported
    new = bpe(LINES + NEW_LINES, 300)
    options = settings(start_from=directory, model={})
    start, lines = StartingModel(options, (new, None)), []
    changed = Transformer(make_config(options, make_recipe(options), *start.vocab_sizes))
    start.copy_weights(changed, lines.append)
    old, found = (one.target_embedding.embeddings.numpy() for one in (model, changed))
    ids = {piece: n for n, piece in enumerate(tokenizers[0].pieces(range(len(old))))}
    pieces = new.pieces(range(new.vocab_size))
    # Only the source's tokenizer can spell the second one, and only the target's the third one.
    table = {"\u2581the": ["\u2581the"], "red": [*"red"], "\u2581door": [*"\u2581door"]}
    for piece, spelled in table.items():
        expected = old[[ids[part] for part in spelled]].mean(axis=0)
        assert_close(found[pieces.index(piece)], expected)


@pytest.mark.slow
def test_a_training_with_another_vocabulary_resumes_with_it(tmp_path, general):
    start = {"start_from": general[0], "model": {}, "checkpoint_every": 1}
    vocabulary = SubwordTokenizer([*WORDS, "x"])
    for max_steps in (1, 2):
        options = settings(**start, max_steps=max_steps)
        result = train(tmp_path, corpus(1), corpus(2), options, vocabulary)
    assert result.steps == 2 and result.translator.model.config.vocab_size == vocabulary.vocab_size
    with pytest.raises(UserError, match="started with other settings: .*vocab_size was 10, now 9"):
        train(tmp_path, corpus(1), corpus(2), settings(**start, max_steps=3))


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


@pytest.mark.slow
def test_a_second_validation_set_chooses_nothing_and_may_change(tmp_path, general):
    start = {"start_from": general[0], "model": {}, "bleu_every": 1, "evaluate_every": 1}
    alone = run(tmp_path / "one", **start, max_steps=2)
    with pytest.raises(KeyboardInterrupt):  # before a checkpoint, but after step 0
        late = {**start, "evaluate_every": 9}
        run(tmp_path / "two", None, [AtStep(1, interrupt)], **late)
    with_other = run(tmp_path / "two", **start, max_steps=2, also_valid={"other": corpus(3, 8)})
    for name, weights in weights_of(alone.translator.model).items():
        assert all(map(np.array_equal, weights, weights_of(with_other.translator.model)[name]))
    assert [row["step"] for row in with_other.history] == ["0", "1", "2"]
    rows = run(tmp_path / "two", **start, max_steps=3, also_valid={"new": corpus(4, 8)}).history
    assert [bool(row["other_loss"]) for row in rows] == [True, True, True, False]
    assert [bool(row["new_loss"]) for row in rows] == [False, False, False, True]


@pytest.mark.parametrize("name, valid", [("valid", True), ("train", True), ("general", False)])
def test_a_second_validation_set_needs_a_first_and_a_name_of_its_own(tmp_path, name, valid):
    also_valid = {name: corpus(2, 8)}
    with pytest.raises(ValueError, match=f"needs `valid_corpus`. Received: {name}"):
        train(tmp_path, corpus(1), corpus(2) if valid else None, settings(), also_valid=also_valid)


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
    tiny = settings(**{**start, "preset": "tiny"})
    assert make_recipe(tiny) == get_preset("tiny").recipe
    imported = make_recipe(settings(**{**start, "start_from": str(tmp_path / "none")}))
    searches = {"beam_size": 7, "length_penalty": 0.9, "length_normalization": "length"}
    assert imported == TrainingRecipe(**adapts, **searches)
