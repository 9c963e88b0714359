"""transformers answers like the Translator from the exported folder, or the export refuses."""

import dataclasses
import functools
import json
import logging
import re
import shutil

import numpy as np
import pytest

from keras_transformer import Transformer
from keras_transformer.bridges import load_opus_mt
from keras_transformer.data import SubwordTokenizer, train_sentencepiece
from keras_transformer.decoding import (
    BeamSearch,
    GreedySearch,
    MinimumLength,
    NoRepeatNgrams,
    RepetitionPenalty,
    Sampling,
    SuppressTokens,
)
from keras_transformer.errors import UserError
from keras_transformer.export import export_transformers
from keras_transformer.inference.translator import Translator
from tests.bridges.published import (
    PORTUGUESE,
    SOURCES,
    TARGETS,
    learn_files,
    published_files,
    save_arrays,
)
from tests.closeness import assert_close
from tests.export.models import TEXTS, random_translator
from tests.export.transformers_peer import TransformersPeer
from tests.tiny_translator import WORDS, sentence, tiny_model, tiny_tokenizer

BEAMS = BeamSearch(4, 1.0, length_normalization="length")


def imported(folder, separate=False):
    codes = () if separate else ("<s>", PORTUGUESE, ">>pob<<")
    learn_files(folder, codes, separate)
    save_arrays(folder)
    translator = load_opus_mt(folder)
    translator.extra_length = 12
    return translator


def adapted(folder):
    """An imported model after a training: its BOS is not zero any more; LoRA is not merged yet."""
    translator, generator = imported(folder), np.random.default_rng(3)
    embedding = translator.model.target_embedding.embeddings
    embedding.assign(embedding + generator.normal(0.0, 0.1, embedding.shape))
    for block in translator.model.decoder.blocks:
        part = block.feed_forward.inner_dense
        part.enable_lora(2)
        part.lora_kernel_b.assign(generator.normal(0.0, 0.3, part.lora_kernel_b.shape))
    return translator


def two_vocabularies(folder):
    model = tiny_model(target_vocab_size=310, use_bias=True, output_bias=True)
    return Translator(model, tiny_tokenizer(), tiny_tokenizer(310), extra_length=12)


def two_tokenizers_of_one_matrix(folder):
    lines = [sentence(2 + seed % 8, seed)[::-1] for seed in range(300)]
    other = train_sentencepiece(lines, vocab_size=320)
    return Translator(tiny_model(), tiny_tokenizer(), other, extra_length=12)


def own(**config):
    return lambda folder: random_translator(**config)


MODELS = {
    "imported": imported,
    "adapted": adapted,
    "post": own(output_bias=True, num_decoder_layers=2),
    "pre": own(norm="pre", use_bias=True, num_encoder_layers=2),
    "imported, two vocabularies": functools.partial(imported, separate=True),
    "two vocabularies": two_vocabularies,
    "two tokenizers of one matrix": two_tokenizers_of_one_matrix,
    "swish, two layers": own(activation="silu", num_encoder_layers=2),
    "gelu, pre": own(activation="gelu", norm="pre", output_bias=True),
}
FAST = ("adapted", "pre")
# The others, of random weights, end answers with tokens that are not among the 4 best extensions:
# there transformers does not see them.
WITH_BEAMS = ("imported", "imported, two vocabularies", "post", "gelu, pre")


def texts_for(translator):
    code = f"{PORTUGUESE} " if translator.source_tokenizer.languages else ""
    texts = TEXTS if translator.source_tokenizer.vocab_size > 200 else SOURCES
    return [code + text for text in (*texts, "an unknown ☃ word")]


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in MODELS
])  # fmt: skip
def test_probabilities_and_answers_are_the_translators(name, tmp_path):
    (tmp_path / "published").mkdir()
    translator = MODELS[name](tmp_path / "published")
    peer = TransformersPeer(
        export_transformers(translator, tmp_path / "m"), translator.model.config.norm_epsilon
    )
    texts, answers = texts_for(translator), [*TARGETS, "red cat", "a small Haus", ""]
    pairs = texts[: len(answers)], answers[: len(texts)]
    for found, score in zip(peer.log_probabilities(*pairs), translator.score(*pairs), strict=True):
        assert_close(found, score.token_log_probabilities, scale=1.0)
    limits = [len(ids) + 12 for ids in translator.source_tokenizer.encode_batch(texts)]
    beams = {"num_beams": 4, "length_penalty": 1.0, "early_stopping": "never"}
    for search, options in ((GreedySearch(), {"num_beams": 1}), (BEAMS, beams)):
        if search is BEAMS and name not in WITH_BEAMS:
            break
        num_compared = 0
        hypotheses = translator.hypotheses(texts, search)
        for text, limit, [answer] in zip(texts, limits, hypotheses, strict=True):
            ids, found = peer.generate(text, limit, **options)
            # Where beams reach the limit, transformers counts answers without an end.
            if search is BEAMS and len(ids) == limit:
                continue
            num_compared += bool(answer.text)
            assert found == answer.text
        assert num_compared >= 2, search


ODD = [
    "</s> a <unk> red <pad> <s>", "  a   red\tdog\n", "x\u00a0y\u200cz\u200b", "e\u0301",
    "<2de> a dog", "a <2de><2de> dog", "<0x41>", "", "\u2581a", "a\u3000b", "ACHTUNG",
    "a . b ,c ' s", "ﬁ ½ Ａ 日本 🙂",
]  # fmt: skip


@pytest.mark.parametrize("model_type, normalization", [("bpe", "nfc"), ("unigram", "nmt_nfkc")])
def test_ids_and_texts_of_own_vocabularies(model_type, normalization, tmp_path):
    lines = [sentence(2 + seed % 8, seed) for seed in range(300)]
    options = {"model_type": model_type, "normalization": normalization, "symbols": ["<2de>"]}
    tokenizer = train_sentencepiece(lines, vocab_size=310, **options)
    translator = Translator(tiny_model(vocab_size=310), tokenizer)
    theirs = TransformersPeer(export_transformers(translator, tmp_path / "m")).tokenizer
    ids = tokenizer.encode_batch([*ODD, *WORDS])
    pieces = [theirs.convert_ids_to_tokens(row) for row in theirs([*ODD, *WORDS])["input_ids"]]
    assert pieces == [[*tokenizer.pieces(row), "</s>"] for row in ids]
    for row, found in zip(ids, theirs([*ODD, *WORDS])["input_ids"], strict=True):
        assert theirs.decode(found, skip_special_tokens=True) == tokenizer.decode(row).strip()


def test_an_imported_model_comes_back(tmp_path):
    (tmp_path / "published").mkdir()
    translator = imported(tmp_path / "published")
    translator.origin = {"name": "Somebody/opus-mt-en-pt", "license": "cc-by-4.0"}
    constraints = [RepetitionPenalty(1.5), NoRepeatNgrams(2), MinimumLength(3)]
    constraints.append(SuppressTokens([1, 7]))
    translator.search = dataclasses.replace(translator.search, constraints=constraints)
    again = load_opus_mt(export_transformers(translator, tmp_path / "m"))
    assert (again.origin, again.search) == (translator.origin, translator.search)
    for found, expected in zip(
        again.model.get_weights(), translator.model.get_weights(), strict=True
    ):
        np.testing.assert_array_equal(found, expected)
    assert again.source_tokenizer.pieces(range(9)) == translator.source_tokenizer.pieces(range(9))


@pytest.mark.slow
def test_published_ids_come_back(tmp_path):
    folder = shutil.copytree(published_files("en-mg"), tmp_path / "published")
    save_arrays(folder)
    export_transformers(load_opus_mt(folder), tmp_path / "m")
    found, published = (path / "vocab.json" for path in (tmp_path / "m", folder))
    assert json.loads(found.read_text("utf-8")) == json.loads(published.read_text("utf-8"))


def test_weights_of_bfloat16_are_stored_in_float32(tmp_path):
    from safetensors.numpy import load_file

    translator = random_translator()
    model = Transformer(translator.model.config, dtype="bfloat16")
    model.set_weights(translator.model.get_weights())
    translator.model.set_weights([np.asarray(w, "float32") for w in model.get_weights()])
    half = Translator(model, tiny_tokenizer())
    one, other = (
        load_file(export_transformers(each, tmp_path / name) / "model.safetensors")
        for name, each in (("half", half), ("single", translator))
    )
    assert {array.dtype for array in one.values()} == {np.dtype("float32")}
    assert all(np.array_equal(one[name], other[name]) for name in other)


@pytest.mark.parametrize("name", ["adapted", pytest.param("pre", marks=pytest.mark.slow)])
def test_the_converter_of_ctranslate2(name, tmp_path):
    ctranslate2 = pytest.importorskip("ctranslate2", reason="pip install ctranslate2")
    (tmp_path / "published").mkdir()
    translator = MODELS[name](tmp_path / "published")
    peer = TransformersPeer(export_transformers(translator, tmp_path / "m"))
    converter = ctranslate2.converters.TransformersConverter(str(tmp_path / "m"))
    engine = ctranslate2.Translator(converter.convert(str(tmp_path / "ct2")), intra_threads=1)
    texts = texts_for(translator)
    pieces = [peer.tokenizer.convert_ids_to_tokens(peer.tokenizer(x)["input_ids"]) for x in texts]
    for text, of_text, answer in zip(
        texts, pieces, translator.translate(texts, GreedySearch()), strict=True
    ):
        limit = len(of_text) + 11
        [best] = engine.translate_batch(
            [of_text], beam_size=1, max_decoding_length=limit, min_decoding_length=0
        )[0].hypotheses
        ids = peer.tokenizer.convert_tokens_to_ids(best)
        assert peer.tokenizer.decode(ids, skip_special_tokens=True) == answer, text


def settings_of(search, tmp_path):
    """The settings of generation that the export writes for a search."""
    translator = Translator(tiny_model(), tiny_tokenizer(), search=search)
    folder = export_transformers(translator, tmp_path / "m")
    return json.loads((folder / "generation_config.json").read_text())


CONSTRAINTS = [MinimumLength(3), NoRepeatNgrams(2), SuppressTokens([5]), RepetitionPenalty(1.5)]
CONSTRAINTS.append(SuppressTokens([1]))


def test_the_search_becomes_settings_of_generate(tmp_path, caplog):
    settings = settings_of(BeamSearch(3, 0.5, 2, "length", CONSTRAINTS), tmp_path)
    expected = {
        "num_beams": 3, "length_penalty": 0.5, "min_new_tokens": 2, "no_repeat_ngram_size": 2,
        "suppress_tokens": [3, 1], "repetition_penalty": 1.5, "max_length": 1074, "eos_token_id": 0,
        "forced_eos_token_id": None, "bad_words_ids": [[319]], "pad_token_id": 319,
        "decoder_start_token_id": 319,
    }  # fmt: skip
    assert settings == expected and not caplog.messages


@pytest.mark.parametrize("search, message", [
    (BeamSearch(), "length ** 0.6, without patience: some answers may be others"),
    (BeamSearch(4, 0.0, patience=1), "without patience"),
    (GreedySearch(CONSTRAINTS), "does not apply .*: RepetitionPenalty\\(penalty=1.5\\)"),
    (Sampling(0.5, 7), None),
    (BEAMS, None),
])  # fmt: skip
def test_what_generate_lacks_is_logged(search, message, tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "keras_transformer"):
        settings = settings_of(search, tmp_path)
    if message is None:
        assert not caplog.messages
        assert settings.get("top_k") == (7 if isinstance(search, Sampling) else None)
    else:
        [found] = caplog.messages
        assert re.search(message.replace("**", r"\*\*"), found)


REFUSED = {
    "position='rotary'": {"position": "rotary"},
    "position='learned'": {"position": "learned", "max_length": 64},
    "sliding_window=3": {"sliding_window": 3},
    "key_dim=4": {"key_dim": 4},
    "norm_epsilon=0.01": {"norm_epsilon": 1e-2},
    "activation='elu'": {"activation": "elu"},
}


@pytest.mark.parametrize("received", REFUSED)
def test_models_that_transformers_does_not_have(received, tmp_path):
    translator = Translator(tiny_model(**REFUSED[received]), tiny_tokenizer())
    with pytest.raises(UserError, match=f"Received: .*{received}") as raised:
        export_transformers(translator, tmp_path / "m")
    assert "\n" not in str(raised.value) and not list(tmp_path.iterdir())


def test_vocabularies_that_transformers_does_not_have(tmp_path):
    codes = train_sentencepiece([sentence(5, n) for n in range(99)], 300, symbols=[">>fra<<"])
    words = SubwordTokenizer([f"word{number}" for number in range(316)])
    pre = tiny_model(norm="pre", target_vocab_size=310)
    for arguments, message in (
        ((tiny_model(), words), "SubwordTokenizer"),
        ((tiny_model(vocab_size=300), codes), "'>>fra<<'"),
        ((pre, tiny_tokenizer(), tiny_tokenizer(310)), "norm='pre' and one vocabulary"),
    ):
        with pytest.raises(UserError, match=message):
            export_transformers(Translator(*arguments), tmp_path / "m")
    assert not list(tmp_path.iterdir())
