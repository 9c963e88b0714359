"""Every signature answers as the Translator; neither padding nor neighbors nor lengths matter."""

import collections
import json
import math

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.data.tokenizer import BOS_ID, EOS_ID
from keras_transformer.decoding import (
    BeamSearch,
    MinimumLength,
    NoRepeatNgrams,
    Sampling,
    search_from_dict,
)
from keras_transformer.export import export_saved_model
from keras_transformer.inference import stored_kernels
from keras_transformer.inference.translator import Translator
from keras_transformer.models import Ensemble, weight_files
from tests.closeness import assert_close
from tests.tiny_translator import sentence, tiny_model, tiny_tokenizer, tiny_translator

TEXTS = [sentence(1 + seed % 12, seed) for seed in range(24)]
TRANSLATIONS = [sentence(seed % 7, 100 + seed) for seed in range(24)]


def ask(loaded, signature, **inputs):
    """The outputs as NumPy arrays, text decoded (which raises unless it is UTF-8)."""
    inputs = {name: tf.constant(texts, tf.string) for name, texts in inputs.items()}
    outputs = loaded.signatures[signature](**inputs)
    arrays = {name: output.numpy() for name, output in outputs.items()}
    decode = np.vectorize(bytes.decode, otypes=[object])
    return {
        name: decode(array) if array.dtype == object and array.size else array
        for name, array in arrays.items()
    }


class TestScore:
    def test_log_probabilities_are_the_translators(self, loaded, translator):
        found = ask(loaded, "score", text=TEXTS, translation=TRANSLATIONS)
        scores = translator.score(TEXTS, TRANSLATIONS)
        expected = [score.log_probability for score in scores]
        assert_close(found["log_probability"], expected, scale=1.0)
        assert found["num_tokens"].tolist() == [score.num_tokens for score in scores]
        assert not found["truncated"].any()

    def test_each_token_has_its_share(self, loaded, translator):
        found = ask(loaded, "score", text=TEXTS[:2], translation=["the red door", ""])
        tokenizer = translator.target_tokenizer
        ids = [*tokenizer.encode("the red door"), EOS_ID]
        assert found["tokens"][0].tolist() == tokenizer.pieces(ids)
        assert found["tokens"][1].tolist() == ["</s>"] + [""] * (len(ids) - 1)
        sums = found["token_log_probabilities"].sum(axis=1)
        assert_close(sums, found["log_probability"], scale=1.0)
        assert not found["token_log_probabilities"][1, 1:].any()

    def test_each_text_needs_a_translation(self, loaded):
        with pytest.raises(tf.errors.InvalidArgumentError, match="one translation for each text"):
            ask(loaded, "score", text=TEXTS[:2], translation=TRANSLATIONS[:1])


def test_attention_is_that_of_the_last_but_one_block(loaded, translator):
    tokenizer, target_tokenizer = translator.source_tokenizer, translator.target_tokenizer
    texts, translations = [TEXTS[9], TEXTS[2]], ["the door", "a small blue bird sees"]
    found = ask(loaded, "attention", text=texts, translation=translations)
    for row, (text, translation) in enumerate(zip(texts, translations, strict=True)):
        source = [*tokenizer.encode(text), EOS_ID]
        target = [*target_tokenizer.encode(translation), EOS_ID]
        ids = np.array([source]), np.array([[BOS_ID, *target[:-1]]])
        blocks = translator.model.attention_scores(*ids)["cross"]
        expected = np.mean(blocks[-2], axis=1)[0]
        weights = found["attention"][row]
        padding = np.array(weights.shape) - expected.shape
        expected = np.pad(expected, [(0, number) for number in padding])
        # Scores of tens are rounded before the softmax takes their exponentials.
        assert_close(weights, expected, sum_length=16 * 1024)
        for side, pieces, number in (
            ("source", tokenizer.pieces(source), padding[1]),
            ("target", target_tokenizer.pieces(target), padding[0]),
        ):
            assert found[f"{side}_tokens"][row].tolist() == pieces + [""] * number


class TestLimits:
    def test_they_are_those_of_the_translator(self, loaded, translator):
        texts = ["", "a red door", sentence(60)]
        found = ask(loaded, "limits", text=texts)
        ids = translator.source_tokenizer.encode_batch(texts)
        assert found["num_tokens"].tolist() == [len(row) + 1 for row in ids]
        assert found["max_source_tokens"].tolist() == [40] * 3
        assert found["max_translation_tokens"].tolist() == [1, len(ids[1]) + 12, 39 + 12]
        assert found["truncated"].tolist() == [False, False, True]
        settings = json.loads(found["settings"][0])
        assert search_from_dict(settings["search"]) == translator.search
        lengths = [settings[f"{name}_length"] for name in ("max_source", "extra", "max_target")]
        assert lengths == [40, 12, 52]

    def test_longer_text_is_cut_and_flagged(self, loaded, translator):
        long, normal = sentence(300, seed=3), sentence(5, seed=5)
        expected = translator.translate([long, normal], long_texts="truncate")
        for signature, name in (("serving_default", "translation"), ("n_best", "translations")):
            found = ask(loaded, signature, text=[long, normal])
            assert found["truncated"].tolist() == [True, False]
            assert [np.atleast_1d(answer)[0] for answer in found[name]] == expected
        found = ask(loaded, "score", text=[long, normal], translation=[normal, long])
        assert found["truncated"].tolist() == [True, True]
        assert found["num_tokens"].tolist()[1] == 52
        assert np.isfinite(found["log_probability"]).all()
        found = ask(loaded, "attention", text=[long, normal], translation=[normal, normal])
        assert found["truncated"].tolist() == [True, False]


class TestBatches:
    def test_neighbors_and_padding_change_nothing(self, loaded):
        """Alone, with a long text, and in a batch: the same text and scores."""
        long = sentence(120, seed=9)
        together = ask(loaded, "serving_default", text=TEXTS)
        for row, text in enumerate(TEXTS[:8]):
            for neighbors in ([], [long]):
                found = ask(loaded, "serving_default", text=[text, *neighbors])
                assert found["translation"][0] == together["translation"][row]
                assert_close(found["score"][0], together["score"][row], scale=1.0)

    def test_every_output_has_a_row_for_every_text(self, loaded):
        """As a server's batching needs it, which joins requests and takes the answers apart."""
        for count in (0, 1, 5):
            for name, signature in loaded.signatures.items():
                keys = signature.structured_input_signature[1]
                inputs = dict.fromkeys(keys, tf.constant(TEXTS[:count], tf.string))
                for output in signature(**inputs).values():
                    assert output.shape[0] == count, name

    @pytest.mark.slow
    def test_several_streams_give_the_same_answers(self, loaded, translator, tmp_path, monkeypatch):
        monkeypatch.setattr(Translator, "max_batch_tokens", 400)  # Several chunks.
        directory = export_saved_model(translator, tmp_path / "m", num_streams=3)
        streamed = tf.saved_model.load(directory)
        for texts in (TEXTS, TEXTS[:1], [], ["", *TEXTS[:3]]):
            found, expected = (ask(one, "n_best", text=texts) for one in (streamed, loaded))
            assert found["translations"].tolist() == expected["translations"].tolist()
            assert_close(found["scores"], expected["scores"], scale=1.0)
        settings = json.loads(ask(streamed, "limits", text=["a"])["settings"][0])
        assert settings["num_streams"] == 3
        # And those of the translator with another search, with constraints.
        search = BeamSearch(2, 1.0, constraints=[MinimumLength(9), NoRepeatNgrams(1)])
        directory = export_saved_model(translator, tmp_path / "m", search)
        found = ask(tf.saved_model.load(directory), "serving_default", text=TEXTS)
        assert found["translation"].tolist() == translator.translate(TEXTS, search)


class TestKinds:
    @pytest.mark.parametrize("has_amx", [False, True])
    @pytest.mark.slow
    def test_bfloat16_halves_the_weights(
        self, has_amx, translator, exported, monkeypatch, tmp_path
    ):
        for module in (stored_kernels, weight_files):
            monkeypatch.setattr(module, "has_amx", lambda: has_amx)
        directory = export_saved_model(translator, tmp_path / "m", dtype="bfloat16")
        data = "variables/variables.data-00000-of-00001"
        small, whole = ((path / data).stat().st_size for path in (directory, exported))
        assert small - whole / 2 < 4000  # names and shapes
        loaded = tf.saved_model.load(directory)
        assert {v.dtype for v in loaded.model_variables} == {tf.bfloat16}
        numbers = sum(math.prod(variable.shape) for variable in loaded.model_variables)
        assert numbers == translator.model.count_params()
        # With AMX, transposes, those of a layer's queries, keys and values in one matrix.
        matrices = []
        for kernel in (w for w in translator.model.weights if w.name == "kernel"):
            rows, width = reversed(kernel.shape) if has_amx else kernel.shape
            if has_amx and kernel.path.endswith(("/key/kernel", "/value/kernel")):
                rows += matrices.pop()[0]
            matrices.append((rows, width))
        stored = collections.Counter(tuple(v.shape) for v in loaded.model_variables)
        assert collections.Counter(matrices) <= stored
        found = ask(loaded, "score", text=TEXTS, translation=TRANSLATIONS)
        expected = [score.log_probability for score in translator.score(TEXTS, TRANSLATIONS)]
        np.testing.assert_allclose(found["log_probability"], expected, rtol=0.05)
        assert translator.model.dtype_policy.name == "float32"
        settings = json.loads(ask(loaded, "limits", text=["a"])["settings"][0])
        assert settings["precision"] == "bfloat16"

    @pytest.mark.parametrize("dtype", [None, "bfloat16"])
    @pytest.mark.slow
    def test_ensemble(self, dtype, monkeypatch, tmp_path):
        monkeypatch.setattr(weight_files, "has_amx", lambda: True)
        ensemble = Ensemble([tiny_model(1), tiny_model(2, num_decoder_layers=2)])
        translator = Translator(ensemble, tiny_tokenizer(), extra_length=12)
        loaded = tf.saved_model.load(export_saved_model(translator, tmp_path / "m", dtype=dtype))
        # In bfloat16, with AMX, kernels of a layer are stored in one matrix.
        numbers = sum(math.prod(variable.shape) for variable in loaded.model_variables)
        assert numbers == sum(math.prod(weight.shape) for weight in ensemble.weights)
        if dtype is None:
            assert len(loaded.model_variables) == len(ensemble.weights)
        found = ask(loaded, "serving_default", text=TEXTS)
        weights = ask(loaded, "attention", text=TEXTS[:1], translation=TEXTS[1:2])["attention"]
        np.testing.assert_allclose(weights.sum(axis=-1), 1.0, rtol=1e-2)
        if dtype is None:
            assert found["translation"].tolist() == translator.translate(TEXTS)

    @pytest.mark.parametrize("num_streams", [1, 2])
    @pytest.mark.slow
    def test_no_two_chunks_draw_the_same_samples(self, num_streams, monkeypatch, tmp_path):
        monkeypatch.setattr(Translator, "max_batch_tokens", 200)
        # The largest seed: what is added to it must not overflow.
        translator = tiny_translator(search=Sampling(seed=2**31 - 1))
        path = export_saved_model(translator, tmp_path / "m", num_streams=num_streams)
        found = ask(tf.saved_model.load(path), "serving_default", text=[sentence(8)] * 48)
        assert len({*found["translation"]}) == 48
