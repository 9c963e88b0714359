"""A model of several languages translates between those that are chosen, wherever it runs."""

import json

import numpy as np
import pytest

from keras_transformer.cli import main
from keras_transformer.data import MappedTokenizer, prepare_corpus, train_sentencepiece
from keras_transformer.data.languages import language_pieces
from keras_transformer.decoding import GreedySearch
from keras_transformer.errors import UserError
from keras_transformer.export import export_transformers
from keras_transformer.inference import Shortlist, Translator
from keras_transformer.inference.tasks import get_task
from keras_transformer.models import TrainingRecipe, Transformer, TransformerConfig
from keras_transformer.settings.training_settings import TrainingSettings
from tests.closeness import assert_close
from tests.layers.oracle_parameters import array
from tests.loaded_once import load_once

CODES = ("eng_Latn", "fra_Latn", "zho_Hans", "zho_Hant")
TEXTS = ["a red house", "blue", ">>red<< red blue house", "", " ".join(["red"] * 40)]
OTHERS = ("fr", "zho_Hant")  # as they are asked for
OWN = ("fra_Latn", "zho_Hant")  # as the model has them


def make_translator(prefixes=CODES[:2]):
    """A small model with random weights; its answers depend on both languages."""
    learned = train_sentencepiece(["a red house .", "blue house"] * 4, vocab_size=280)
    pieces = [*learned.pieces(range(4, learned.vocab_size)), *CODES]
    tokenizers = [MappedTokenizer(learned.model, pieces, (), CODES, code) for code in prefixes]
    size = tokenizers[0].vocab_size
    config = TransformerConfig(
        vocab_size=size, d_model=16, num_heads=2, intermediate_dim=24, num_encoder_layers=1,
        num_decoder_layers=1, dropout=0.0,
    )  # fmt: skip
    model = Transformer(config)
    random = np.random.default_rng(1)
    model.set_weights([random.normal(0, 0.7, w.shape) for w in model.get_weights()])
    return Translator(model, *tokenizers, GreedySearch(), extra_length=8, max_source_length=64)


@pytest.fixture(scope="module")
def translator():
    return make_translator()


@pytest.fixture(scope="module")
def other():
    """Another translator, whose tokenizers were made for the other languages."""
    return make_translator(OWN)


def test_codes_of_a_model_and_of_iso_639_mean_its_pieces():
    found = language_pieces(["__en__", "__zh__", "__ns__", "<mask>", "not a code"])
    assert found["en"] == found["eng"] == "__en__" and found["zh"] == "__zh__"
    found = language_pieces([*CODES, "kor_Hang", "arb_Arab", "arz_Arab", "pes_Arab", "prs_Arab"])
    assert found["zh"] == "zho_Hans" and found["ko"] == "kor_Hang" and found["ar"] == "arb_Arab"
    assert found["fa"] == "pes_Arab" and "cmn" not in found and "de" not in found
    assert language_pieces(["en_XX", "pt_XX"])["pt"] == "pt_XX"


def test_other_languages_are_those_of_other_tokenizers(translator, other):
    chosen = translator.with_languages(*OTHERS)
    assert [t.language for t in chosen.tokenizers] == ["fra_Latn", "zho_Hant"]
    answers = chosen.translate(TEXTS)
    assert answers == other.translate(TEXTS) != translator.translate(TEXTS)
    [found, want, before] = [
        t.score(TEXTS[:2], ["blue house", "a"]) for t in (chosen, other, translator)
    ]
    assert found == want != before
    found, want = (t.align(TEXTS[:3], TEXTS[:3]) for t in (chosen, other))
    for ours, theirs, text in zip(found, want, TEXTS, strict=False):
        assert ours.pairs == theirs.pairs
        assert ours.attention.shape == (len(text.split()),) * 2
    first = translator.source_tokenizer.encode("red house")
    assert first[1:] == [
        t for w in ("red", "house") for t in translator.source_tokenizer.encode(w)[1:]
    ]


def test_the_attention_to_a_language_belongs_to_no_word(translator):
    source, target = "red house", "blue"
    [found] = translator.align([source], [target], layer=0)
    ids = [[t.encode(text) for text in (source, target)] for t in translator.tokenizers]
    (source_ids, _), (_, target_ids) = ids
    inputs = np.array([[*source_ids, 3]]), np.array([[2, *target_ids]])
    scores = translator.model.attention_scores(*inputs)["cross"][0]
    scores = np.mean(array(scores), axis=1)[0, 1 : len(target_ids), 1 : len(source_ids)]
    num_red = len(translator.source_tokenizer.encode("red")) - 1
    words = [scores[:, :num_red].sum(axis=1), scores[:, num_red:].sum(axis=1)]
    assert_close(found.attention, np.mean(words, axis=1)[None])
    # A first word without subwords changes nothing for the others.
    [shifted] = translator.align(["\ufeff red house"], ["\ufeff blue"], layer=0)
    assert translator.source_tokenizer.encode("\ufeff") == []
    assert_close(shifted.attention[1:, 1:], found.attention)


def test_a_language_is_in_front_of_the_parts_of_a_text_and_no_part_of_the_text(translator):
    tokenizer = translator.source_tokenizer
    assert tokenizer.decode(tokenizer.encode(">>red<< fra_Latn blue")) == ">>red<< fra_Latn blue"
    [language] = tokenizer.beginning
    short = Translator(translator.model, *translator.tokenizers, max_source_length=24)
    parts = short.split(TEXTS[-1])
    num_subwords = len(tokenizer.encode(TEXTS[-1])) - 1
    # 22 subwords and the language are in each part.
    assert len(parts) == -(-num_subwords // 22)
    assert all(part.ids[0] == language and language not in part.ids[1:] for part in parts)


def test_each_feature_works_in_the_chosen_languages(translator, other, tmp_path):
    """Each cell equals the translator whose tokenizers were made for these languages."""
    quantized, want = make_translator(), make_translator(OWN)
    for each in (quantized, want):
        each.model.quantize("int8")
    assert quantized.with_languages(*OTHERS).translate(TEXTS) == want.translate(TEXTS)
    prefixes = ["blue"] * len(TEXTS)
    begun = translator.with_languages(*OTHERS).translate(TEXTS, prefixes=prefixes)
    assert begun == other.translate(TEXTS, prefixes=prefixes) and begun[0].startswith("blue")
    saved = translator.with_languages(*OTHERS)
    saved.save(tmp_path)
    assert Translator.load(tmp_path).translate(TEXTS) == other.translate(TEXTS)
    other.save(tmp_path / "b")
    translator.save(tmp_path / "a")
    with pytest.raises(
        UserError, match="same languages. Received: .* from eng_Latn to fra_Latn and"
    ):
        Translator.load([tmp_path / "a", tmp_path / "b"])


def test_bleu_in_a_training_follows_the_language_of_the_model(translator, monkeypatch):
    made = "keras_transformer.training.scores.BleuOnDev"
    monkeypatch.setattr(made, lambda *texts, **options: options["tokenize"])
    task, settings = get_task("translation"), TrainingSettings()
    for code, tokenize in (("fr", "13a"), ("zh", "zh")):
        tokenizers = translator.with_languages(None, code).tokenizers
        found = task.make_score([("a", "b")], tokenizers, settings, TrainingRecipe())
        assert found == tokenize


def test_wrong_languages_are_refused(translator, tmp_path):
    with pytest.raises(UserError, match="puts no piece of a language before a text"):
        export_transformers(translator, tmp_path)
    for code, near in (("zho_Hanx", "zho_Han[st]"), ("zh-TW", "zho_Hant"), ("EN", "eng_Latn")):
        with pytest.raises(UserError, match=rf"no language '{code}' \(did you mean {near}\?\)"):
            translator.with_languages(code)
    with pytest.raises(UserError, match=r"no language 'de'\. Allowed: eng_Latn, fra_Latn"):
        translator.with_languages(None, "de")
    chosen = translator.with_languages("fr")
    size = translator.model.config.vocab_size
    chosen.shortlist = Shortlist(
        np.full((size, 2), 3, "int32"), np.arange(9, dtype="int32"), size, 0
    )
    assert translator.shortlist is None
    assert chosen.with_languages("fr").shortlist is chosen.shortlist
    with pytest.raises(UserError, match="A shortlist is for one pair of languages"):
        chosen.with_languages("en")
    plain = train_sentencepiece(["a red house", "blue house"], vocab_size=280)
    model = Transformer.from_preset("tiny", vocab_size=280)
    with pytest.raises(UserError, match="no languages to choose from. Received: 'en'"):
        Translator(model, plain).with_languages("en")


@pytest.mark.tensorflow_only("the graph is TensorFlow's")
def test_a_saved_model_has_a_language_for_each_text(translator, other, signatures_of, tmp_path):
    import tensorflow as tf

    from keras_transformer.export import export_saved_model

    signatures_of("serving_default", "score")
    export_saved_model(translator, tmp_path / "1")
    loaded = tf.saved_model.load(str(tmp_path / "1"))
    texts = [text for text in TEXTS for _ in range(3)]
    codes = [("", ""), ("fr", "zho_Hant"), ("en", "xx")] * len(TEXTS)
    inputs = {
        "text": tf.constant(texts),
        "source_language": tf.constant([source for source, _ in codes]),
        "target_language": tf.constant([target for _, target in codes]),
    }
    found = loaded.signatures["serving_default"](**inputs)
    answers = [answer.decode() for answer in found["translation"].numpy()]
    assert answers[0::3] == translator.translate(TEXTS)
    assert answers[1::3] == other.translate(TEXTS)
    assert answers[2::3] == [""] * len(TEXTS)
    is_lost = np.isneginf(found["score"].numpy())
    assert is_lost.tolist() == [source == "en" for source, _ in codes]
    with pytest.raises(tf.errors.InvalidArgumentError, match="as many strings in each input"):
        loaded.signatures["serving_default"](**inputs | {"source_language": tf.constant([""])})
    scored = loaded.signatures["score"](
        **inputs, translation=tf.constant(["blue house"] * len(texts))
    )
    want = [t.score(TEXTS[:1], ["blue house"])[0].log_probability for t in (translator, other)]
    np.testing.assert_allclose(scored["log_probability"][:2], want, rtol=1e-4)
    assert scored["log_probability"][2] == -np.inf


@pytest.mark.tensorflow_only("the server needs TensorFlow")
@pytest.mark.usefixtures("slow_bfloat16")
def test_a_server_takes_the_languages_of_each_text(translator, other, tmp_path):
    from keras_transformer.cli.export import _example
    from keras_transformer.serving.models import ServedModel, Signature
    from tests.serving.echo import serving

    translator.save(tmp_path)
    model = ServedModel("model", 1, tmp_path)
    model.warm_up()
    text = "He wants to sell three lamps."
    expected = {"text": text, "source_language": "", "target_language": ""}
    assert _example(model) == expected
    saved = ServedModel("saved", 1, tmp_path)  # of a SavedModel, whose inputs are sorted
    saved.pipeline, saved.signatures = None, {"serving_default": Signature(sorted(expected), None)}
    assert _example(saved) == expected
    with serving(model) as client:
        assert client.predict({"instances": [_example(model)]}, "model")[0] == 200
        rows = [
            {"text": TEXTS[0], "source_language": "", "target_language": ""},
            {"text": TEXTS[0], "source_language": "fr", "target_language": "zho_Hant"},
        ]
        status, answer = client.predict({"instances": rows}, "model")
        pairs = [row | {"translation": "blue house"} for row in rows]
        request = {"signature_name": "attention", "instances": pairs}
        _, drawn = client.predict(request, "model")
        asked = {"text": TEXTS[:1], "answer": ["blue house"]}
        asked |= {"source_language": ["fr"], "target_language": ["zho_Hant"]}
        body = json.dumps({"inputs": asked}).encode()
        _, aligned = client.send("POST", "/page/model/pairs", body)
        _, page = client.send("GET", "/")
    assert aligned["pairs"] == [[list(p) for p in other.align(TEXTS[:1], ["blue house"])[0].pairs]]
    sources = [row["source_tokens"][0] for row in drawn["predictions"]]
    assert sources == ["eng_Latn", "fra_Latn"]
    assert '"languages": ["eng_Latn", "fra_Latn", "zho_Hans", "zho_Hant"]' in page
    assert status == 200
    found = [row["translation"] for row in answer["predictions"]]
    assert found == [t.translate(TEXTS[:1])[0] for t in (translator, other)]


@pytest.mark.usefixtures("slow_bfloat16")
def test_the_commands_choose_languages(translator, other, tmp_path, capfd, monkeypatch):
    model, text = str(tmp_path / "model"), tmp_path / "text"
    translator.save(model)
    load_once(monkeypatch, model)
    text.write_text("".join(f"{line}\n" for line in TEXTS[:3]))
    options = "--source-language", "fr", "--target-language", "zho_Hant"
    assert main(["translate", "--model", model, "--input", str(text), *options]) == 0
    answers = other.translate(TEXTS[:3])
    assert capfd.readouterr().out.splitlines() == answers
    files = "--source", str(text), "--target", str(text)
    assert main(["score", "--model", model, *files, *options]) == 0
    written, summary = capfd.readouterr()
    scores = [float(line.split()[0]) for line in written.splitlines()]
    want = other.score(TEXTS[:3], TEXTS[:3])
    np.testing.assert_allclose(scores, [score.log_probability for score in want], atol=1e-4)
    # The language of a translation is given, and no token of the perplexity.
    num_tokens = sum(score.num_tokens - 1 for score in want)
    assert f"perplexity {np.exp(-sum(scores) / num_tokens):.1f}" in summary
    (tmp_path / "reference").write_text("".join(f"{line or '-'}\n" for line in answers))
    files = "--source", str(text), "--reference", str(tmp_path / "reference")
    assert main(["evaluate", "--model", model, *files, *options]) == 0
    # BLEU's tokenizer follows the language of the answers, given or the model's own.
    assert "tok:zh" in capfd.readouterr().out
    assert main(["translate", "--model", model, "a", "--target-language", "xx"]) == 2
    assert "no language 'xx'" in capfd.readouterr().err


@pytest.mark.tensorflow_only("`train` reads its data with tf.data")
def test_an_adaptation_is_to_the_chosen_languages_and_keeps_the_others(translator, tmp_path, capfd):
    start, adapted = str(tmp_path / "start"), str(tmp_path / "adapted")
    translator.save(start)
    files = {}
    for name in ("source", "target", "valid-source", "valid-target"):
        files[name] = tmp_path / name
        files[name].write_text("a red house\nblue\n" * 8)
    options = [word for name, path in files.items() for word in (f"--{name}", str(path))]
    options += ["--source-language", "fr", "--target-language", "zho_Hant", "--max-steps", "2"]
    options += ["--lora", "2", "--warmup-steps", "1"]
    assert main(["train", "--start-from", start, "--output", adapted, *options]) == 0
    found = Translator.load(adapted)
    assert [t.language for t in found.tokenizers] == ["fra_Latn", "zho_Hant"]
    assert found.model.config.vocab_size == translator.model.config.vocab_size
    assert found.with_languages("en", "fr").target_tokenizer.language == "fra_Latn"
    # Another vocabulary would lose the languages; encoded text has its own.
    tokenizer = train_sentencepiece(["a red house", "blue"] * 4, vocab_size=280)
    tokenizer.save(tmp_path, "other")
    other = [*options[:-4], "--vocabulary", str(tmp_path / "other.model"), "--output", adapted]
    assert main(["train", "--start-from", start, *other]) == 2
    assert "several languages, which no other vocabulary has" in capfd.readouterr().err
    prepared, pairs = str(tmp_path / "prepared"), [("a red house", "blue")] * 8
    prepare_corpus(prepared, pairs, pairs, *translator.tokenizers)
    options = "--prepared", prepared, "--output", adapted, "--target-language", "zho_Hant"
    assert main(["train", "--start-from", start, *options]) == 2
    assert "is encoded in 'fra_Latn'. Received: --target-language zho" in capfd.readouterr().err


def test_a_missing_tokenizer_of_bleu_is_named_before_the_work(
    translator, tmp_path, monkeypatch, capfd
):
    def make_bleu(tokenize):
        if tokenize == "zh":
            raise UserError("The tokenizer cannot be loaded")

    translator.with_languages(None, "zho_Hant").save(tmp_path / "model")
    (tmp_path / "text").write_text("a red house\n")
    monkeypatch.setattr("keras_transformer.evaluation.bleu.make_bleu", make_bleu)
    monkeypatch.setattr(Translator, "translate", None)
    files = ["--model", tmp_path / "model", "--source", tmp_path / "text"]
    assert main([*map(str, ["evaluate", *files, "--reference", tmp_path / "text"])]) == 2
    assert "The tokenizer cannot be loaded" in capfd.readouterr().err
    # Without --target-language the language is that of the model to start from.
    files = [w for side in ("source", "target") for w in (f"--{side}", f"--valid-{side}")]
    files = [word for option in files for word in (option, tmp_path / "text")]
    start = ["--start-from", tmp_path / "model", "--output", tmp_path / "adapted"]
    assert main([*map(str, ["train", *files, *start, "--max-steps", "1"])]) == 2
    assert "The tokenizer cannot be loaded" in capfd.readouterr().err
