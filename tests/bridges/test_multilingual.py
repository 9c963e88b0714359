"""Published M2M100, NLLB-200 and mBART-50 models equal transformers'; others are refused."""

import gc
import importlib
import json
import shutil

import keras
import numpy as np
import pytest
import sentencepiece

from keras_transformer.bridges import load_multilingual
from keras_transformer.cli import main
from keras_transformer.decoding import BeamSearch, GreedySearch
from keras_transformer.errors import UserError
from keras_transformer.inference import Translator
from keras_transformer.settings.transformer_config import count_parameters
from tests.bridges.published import SOURCES, TARGETS
from tests.closeness import assert_close
from tests.composition.test_quantization_and_lora import quantize
from tests.layers.oracle_parameters import array
from tests.training.uncompiled import uncompiled

# Codes of the source and of the target, and what is around them in a piece.
LANGUAGES = {
    "m2m100": ("en", "de", "__{}__"),
    "nllb": ("eng_Latn", "deu_Latn", "{}"),
    "mbart50": ("en_XX", "de_DE", "{}"),
}
CLASSES = {"m2m100": "M2M100Tokenizer", "nllb": "NllbTokenizer", "mbart50": "MBart50TokenizerFast"}
RECIPE = {"max_length": 60}
TEXTS = [*SOURCES, "an unknown ☃ word"]


def transformers_codes(family):
    """The languages of a family in transformers, in the order of their ids."""
    module = {"m2m100": "m2m_100.tokenization_m2m_100"}.get(
        family, f"{family}.tokenization_{family}"
    )
    codes = importlib.import_module(f"transformers.models.{module}").FAIRSEQ_LANGUAGE_CODES
    return codes["m2m100"] if family == "m2m100" else codes


def tokenizer_of_transformers(folder, language):
    import transformers

    if folder.name.startswith("m2m100"):
        files = folder / "vocab.json", folder / "sentencepiece.bpe.model"
        return transformers.M2M100Tokenizer(*map(str, files), src_lang=language)
    name = CLASSES["nllb" if folder.name.startswith("nllb") else "mbart50"].removesuffix("Fast")
    return getattr(transformers, name).from_pretrained(folder, src_lang=language)


def write_tokenizer_json(folder, codes):
    """Writes `tokenizer.json` as NLLB's is: the languages, then the piece of masks."""
    import transformers

    languages = {"src_lang": codes[0], "extra_special_tokens": codes}
    tokenizer = transformers.NllbTokenizer.from_pretrained(folder, **languages)
    values = json.loads(tokenizer.backend_tokenizer.to_str())
    added = sorted(values["added_tokens"], key=lambda token: token["content"] == "<mask>")
    for number, token in enumerate(added[4:]):  # fairseq's reserved pieces are in the vocabulary
        token["id"] = len(values["model"]["vocab"]) + number
    ids = {token["content"]: token["id"] for token in added}
    for piece, special in values["post_processor"]["special_tokens"].items():
        special["ids"] = [ids[piece]]
    (folder / "tokenizer.json").write_text(json.dumps({**values, "added_tokens": added}))


@pytest.fixture(scope="module", params=LANGUAGES)
def published(request, tmp_path_factory):
    """The folder of a small model with random weights, its translator, and transformers' model."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp(request.param)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter((SOURCES + TARGETS) * 3), model_prefix=str(folder / "sp"),
        vocab_size=90, minloglevel=2, hard_vocab_limit=False, character_coverage=1.0,
        model_type="unigram" if request.param == "mbart50" else "bpe",
    )  # fmt: skip
    (folder / "sp.model").rename(folder / "sentencepiece.bpe.model")
    processor = sentencepiece.SentencePieceProcessor(
        model_file=str(folder / "sentencepiece.bpe.model")
    )
    source, target, piece = LANGUAGES[request.param]
    codes = [piece.format(code) for code in transformers_codes(request.param)]
    pieces = ["<s>", "<pad>", "</s>", "<unk>"]
    pieces += [processor.id_to_piece(n) for n in range(3, processor.get_piece_size())]
    if request.param == "m2m100":
        text = json.dumps({piece: number for number, piece in enumerate(pieces)})
        (folder / "vocab.json").write_text(text, encoding="utf-8")
    special = {"additional_special_tokens": codes, "eos_token": "</s>"}
    (folder / "special_tokens_map.json").write_text(json.dumps(special))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": CLASSES[request.param]})
    )
    if request.param == "nllb":
        write_tokenizer_json(folder, codes)
    (folder / "README.md").write_text("---\nlicense: cc-by-nc-4.0\n---\n")
    architecture = "MBart" if request.param == "mbart50" else "M2M100"
    config = getattr(transformers, f"{architecture}Config")(
        vocab_size=len(pieces) + len(codes) + 8, d_model=32, encoder_layers=2, decoder_layers=1,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=48,
        decoder_ffn_dim=48, max_position_embeddings=64, scale_embedding=True,
        activation_function="relu", decoder_start_token_id=2,
    )  # fmt: skip
    torch.manual_seed(1)
    model = getattr(transformers, f"{architecture}ForConditionalGeneration")(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * (0.25 if weight.dim() > 1 else 0.1))
        if architecture == "MBart":
            model.final_logits_bias.normal_()
        model.model.shared.weight[1] = 0.0  # padding
        model.model.shared.weight[2] *= 1.5
        # So that answers end.
        model.model.decoder.layer_norm.bias.add_(2.0 * model.model.shared.weight[2])
    model.generation_config.update(num_beams=3, max_length=200)
    model.save_pretrained(folder)
    translator = load_multilingual(folder, source, target)
    translator.extra_length = 12
    numbers = {piece: number for number, piece in enumerate([*pieces, *codes])}
    return folder, translator, model, processor, numbers, (codes, piece, source, target)


# For tests that take seconds: the other families only in the slow run.
SLOW = [pytest.param(family, marks=pytest.mark.slow) for family in ("m2m100", "nllb")]
ONE_FAMILY = pytest.mark.parametrize("published", ["mbart50", *SLOW], indirect=True)


def theirs(texts, published, language):
    """The ids of texts: a language, the pieces, and the end of the sentence."""
    _, _, _, processor, numbers, (_, piece, *_) = published
    find = lambda name: numbers.get(name, numbers["<unk>"])  # noqa: E731
    pieces = (processor.encode(text, out_type=str) for text in texts)
    return [[numbers[piece.format(language)], *map(find, row), 2] for row in pieces]


def padded(rows, value):
    longest = max(map(len, rows))
    return np.array([[*row, *[value] * (longest - len(row))] for row in rows])


def our_rows(translator):
    """The published id of each of our ids."""
    size = translator.model.config.vocab_size - 1
    return np.array([1, 3, 2, 2, 0, *range(4, size)])


def test_ids_and_the_graph_equal_transformers(published):
    folder, translator, _, _, _, (_, _, source, target) = published
    rows = our_rows(translator)
    for tokenizer, language in (
        (translator.source_tokenizer, source),
        (translator.target_tokenizer, target),
    ):
        ids = tokenizer.encode_batch([*TEXTS, "", " "])
        assert ids[-2:] == [[], []]
        assert [[*rows[row], 2] for row in ids[:-2]] == theirs(TEXTS, published, language)
        assert tokenizer.decode(tokenizer.encode(TARGETS[0])) == TARGETS[0]
        other = tokenizer_of_transformers(folder, language)
        assert theirs(TEXTS, published, language) == other(TEXTS)["input_ids"]


@pytest.mark.tensorflow_only("the graph is TensorFlow's")
def test_the_graph_has_the_same_ids(published):
    _, translator, *_ = published
    for tokenizer in (translator.source_tokenizer, translator.target_tokenizer):
        ids, in_graph = tokenizer.encode_batch([*TEXTS, ""]), tokenizer.in_graph()
        assert in_graph.tokenize([*TEXTS, ""]).to_list() == ids
        texts = [text.decode() for text in in_graph.detokenize(padded(ids, 0)).numpy()]
        assert texts == tokenizer.decode_batch(ids)


def test_logits_equal_transformers(published):
    torch = pytest.importorskip("torch")
    _, translator, model, *_, (_, _, source, target) = published
    sources, targets = theirs(TEXTS, published, source), theirs([*TARGETS, "x"], published, target)
    begun = [[2, *row[:-1]] for row in targets]
    ids = padded(sources, 1)
    want = model(
        input_ids=torch.tensor(ids), attention_mask=torch.tensor(ids != 1),
        decoder_input_ids=torch.tensor(padded(begun, 1)),
    ).logits.detach().numpy()  # fmt: skip
    rows = our_rows(translator)
    source = padded([[*row, 3] for row in translator.source_tokenizer.encode_batch(TEXTS)], 0)
    ours = translator.target_tokenizer.encode_batch([*TARGETS, "x"])
    inputs = {"source": source.astype("int32"), "target": padded([[2, *r] for r in ours], 0)}
    found = array(translator.model(inputs))
    for row, target in enumerate(ours):
        end = len(target) + 1
        assert_close(found[row, :end, 3:], want[row, :end][:, rows[3:]])
    assert found[:, :, [0, 2]].max() < -50


def test_greedy_answers_equal_transformers_and_begin_with_the_language(published, tmp_path):
    torch = pytest.importorskip("torch")
    _, translator, model, _, numbers, (_, piece, source, target) = published
    rows = our_rows(translator)
    answers = translator.hypotheses(TEXTS, GreedySearch())
    options = {"forced_bos_token_id": numbers[piece.format(target)], "bad_words_ids": [[1]]}
    options |= {"max_length": None, "do_sample": False}
    for ids, [answer] in zip(theirs(TEXTS, published, source), answers, strict=True):
        limit = len(ids) - 1 + translator.extra_length
        tokens = model.generate(
            input_ids=torch.tensor([ids]), num_beams=1, max_new_tokens=limit, **options
        )[0].tolist()
        # mBART's config makes the last token an end, which is then no part of the comparison.
        found = [2, *rows[list(answer.tokens)]][:limit]
        assert found == tokens[: len(found)]
        assert found[1] == numbers[piece.format(target)] and piece.format(target) not in answer.text


@ONE_FAMILY
def test_answers_with_beams_equal_transformers_and_outlast_the_process(published, tmp_path):
    torch = pytest.importorskip("torch")
    _, translator, model, _, numbers, (_, piece, source, target) = published
    assert translator.search == BeamSearch(3, 1.0, length_normalization="length")
    rows, num_compared = our_rows(translator), 0
    answers = translator.hypotheses(TEXTS)
    for ids, [answer, *_] in zip(theirs(TEXTS, published, source), answers, strict=True):
        limit = len(ids) - 1 + translator.extra_length
        tokens = model.generate(
            input_ids=torch.tensor([ids]), num_beams=3, max_new_tokens=limit, max_length=None,
            forced_bos_token_id=numbers[piece.format(target)], bad_words_ids=[[1]],
            early_stopping="never", renormalize_logits=True, length_penalty=1.0,
        )[0].tolist()  # fmt: skip
        if len(tokens) <= limit:  # An end that is forced at the limit costs nothing there.
            num_compared += 1
            assert [2, *rows[list(answer.tokens)]] == tokens
    assert num_compared >= 2, num_compared
    [score, empty] = translator.score(SOURCES[:2], [TARGETS[0], ""])
    of_language, *others = score.token_log_probabilities
    assert of_language == 0 and score.log_probability == pytest.approx(sum(others)) and others
    assert empty.tokens == (3,)
    translator.save(tmp_path)
    texts = [*TEXTS, ""]
    assert Translator.load(tmp_path).translate(texts) == translator.translate(texts)
    begun = translator.translate(["a dog"], prefixes=["ein Hund"])[0]
    assert begun.startswith("ein Hund")


@ONE_FAMILY
@pytest.mark.parametrize("form", ["int8", "bfloat16"])
def test_other_forms_of_the_model_have_close_logits(form, published, tmp_path, monkeypatch):
    _, translator, *_ = published
    monkeypatch.setattr(gc, "collect", lambda *args: 0)  # Keras collects after each map.
    model = translator.model
    assert count_parameters(model.config) == model.count_params()
    if form == "int8":
        changed = keras.models.clone_model(model)
        changed.set_weights(model.get_weights())
        quantize(changed, "int8")
        changed.save(tmp_path / "changed.keras")
        changed = keras.models.load_model(tmp_path / "changed.keras")
    else:
        translator.save(tmp_path)
        changed = Translator.load(tmp_path, dtype="bfloat16").model
    ids = padded(translator.source_tokenizer.encode_batch(TEXTS), 0).astype("int32")
    inputs, is_real = {"source": ids, "target": ids}, ids != 0
    want, found = (array(one(inputs))[is_real][:, 3:] for one in (model, changed))
    assert 0 < np.abs(found - want).max() < 0.1 * np.abs(want).max()


@ONE_FAMILY
@pytest.mark.tensorflow_only("the export needs TensorFlow")
def test_a_saved_model_answers_in_the_language(published, signatures_of, tmp_path):
    tf = pytest.importorskip("tensorflow")
    from keras_transformer.export import export_saved_model

    _, translator, *_ = published
    signatures_of("serving_default")
    export_saved_model(translator, tmp_path / "1")
    served = tf.saved_model.load(str(tmp_path / "1")).signatures["serving_default"]
    texts = [*TEXTS, "", f"{SOURCES[0]} {SOURCES[1]}"]
    languages = dict.fromkeys(("source_language", "target_language"), tf.fill([len(texts)], ""))
    found = served(text=tf.constant(texts), **languages)["translation"].numpy()
    assert [text.decode() for text in found] == translator.translate(texts)


def test_ctranslate2_answers_alike_with_the_language_as_the_prefix(published, tmp_path, caplog):
    ctranslate2 = pytest.importorskip("ctranslate2", reason="pip install ctranslate2")
    from keras_transformer.export import export_ctranslate2

    _, translator, *_, (_, piece, _, target) = published
    export_ctranslate2(translator, tmp_path / "peer")
    assert f"and each answer with {piece.format(target)}." in caplog.text
    peer = ctranslate2.Translator(str(tmp_path / "peer"), intra_threads=1)
    tokenizers = translator.source_tokenizer, translator.target_tokenizer
    for text in TEXTS:
        pieces = tokenizers[0].pieces(tokenizers[0].encode(text))
        options = {"beam_size": 1, "min_decoding_length": 0}
        options["target_prefix"] = [[piece.format(target)]]
        limit = len(pieces) + translator.extra_length
        [found] = peer.translate_batch([pieces], max_decoding_length=limit, **options)
        [[answer]] = translator.hypotheses([text], GreedySearch())
        tokens = [token for token in answer.tokens if token != 3]
        assert found.hypotheses[0] == tokenizers[1].pieces(tokens)


@ONE_FAMILY
@pytest.mark.tensorflow_only("`train` reads its data with tf.data")
def test_the_model_is_adapted_and_its_labels_begin_with_the_language(published, tmp_path):
    from keras_transformer.data import PairsCorpus
    from keras_transformer.training import TrainingSettings, train

    _, translator, *_ = published
    translator.save(tmp_path / "start")
    corpus = PairsCorpus(list(zip(SOURCES, TARGETS, strict=True)) * 4)
    settings = TrainingSettings(
        start_from=str(tmp_path / "start"), max_steps=2, lora=2, recipe=RECIPE
    )
    with uncompiled():
        result = train(tmp_path / "adapted", corpus, corpus, settings)
    # The language is given: it costs nothing, in validations as in scores.
    scores = translator.score(*zip(*corpus, strict=True))
    loss = -sum(s.log_probability for s in scores) / sum(s.num_tokens - 1 for s in scores)
    assert_close(float(result.history[0]["valid_loss"]), loss)
    tokenizer = result.translator.target_tokenizer
    assert tokenizer.beginning == translator.target_tokenizer.beginning != ()
    answers = result.translator.hypotheses(SOURCES)
    assert all(answer.tokens[:1] == tokenizer.beginning for [answer, *_] in answers)


@pytest.mark.parametrize("languages, message", [
    (("xyz", None), "has no language 'xyz'"), ((None, "Deutsch"), "has no language 'Deutsch'"),
])  # fmt: skip
def test_an_unknown_language_is_refused(published, languages, message):
    folder, *_, (_, _, *known) = published
    given = [language or other for language, other in zip(languages, known, strict=True)]
    with pytest.raises(UserError, match=message):
        load_multilingual(folder, *given)


def test_wrong_files_are_refused_in_one_line(published, tmp_path, capfd):
    folder, *_, (_, _, source, target) = published
    status = main(["import", str(folder), "--output", str(tmp_path / "out")])
    assert status == 2 and "need both: M2M100, NLLB-200 and mBART-50" in capfd.readouterr().err
    for name in ("sentencepiece.bpe.model", "special_tokens_map.json"):
        copy = copy_without(tmp_path / name, folder, name, "tokenizer.json")
        with pytest.raises(UserError, match=f"lacks {name}"):
            load_multilingual(copy, source, target)
    copy = copy_without(tmp_path / "penalty", folder)
    path = copy / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "repetition_penalty": 1.2}))
    with pytest.raises(UserError, match="repetition_penalty=1.2"):
        load_multilingual(copy, source, target)
    copy = copy_without(tmp_path / "other", folder)
    path = copy / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "encoder_layers": 1}))
    with pytest.raises(UserError, match="has a tensor that the model in config.json does not have"):
        load_multilingual(copy, source, target)
    path.write_text(json.dumps({**json.loads(path.read_text()), "max_position_embeddings": 10**9}))
    with pytest.raises(UserError, match="max_position_embeddings=1000000000"):
        load_multilingual(copy, source, target)
    languages = "--source-language", source, "--target-language", target
    assert main(["import", str(folder), "--output", str(tmp_path / "model"), *languages]) == 0
    assert "license cc-by-nc-4.0" in capfd.readouterr().err


def copy_without(copy, folder, *names, **changes):
    """A copy of a folder without some files, and with changed values in `tokenizer_config.json`."""
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns(*names))
    path = copy / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return copy


@pytest.mark.parametrize("published, changes, message", [
    ("mbart50", {"tokenizer_class": "MBartTokenizer"}, "not the first mBART.*'MBartTokenizer'"),
    ("nllb", {"legacy_behaviour": True}, "legacy order cannot be imported.*=True"),
], indirect=["published"])  # fmt: skip
def test_a_language_behind_the_text_is_refused(published, changes, message, tmp_path):
    folder, *_, (_, _, source, target) = published
    with pytest.raises(UserError, match=message) as raised:
        load_multilingual(copy_without(tmp_path / "copy", folder, **changes), source, target)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("published", ["nllb"], indirect=True)
def test_languages_are_read_from_each_of_the_files_that_have_them(published, tmp_path):
    folder, translator, *_, numbers, (codes, _, source, target) = published
    code, number = "tyv_Cyrl", len(numbers) + 1  # Behind the piece of masks.
    for name in ("tokenizer.json", "special_tokens_map.json"):
        copy = copy_without(tmp_path / name, folder, name)
        (copy / "added_tokens.json").write_text(json.dumps({code: number, "<extra>": number + 1}))
        tokenizers = (
            translator.source_tokenizer,
            load_multilingual(copy, source, code).source_tokenizer,
        )
        assert tokenizers[0].encode_batch(TEXTS) == tokenizers[1].encode_batch(TEXTS)
        target_tokenizer = load_multilingual(copy, source, code).target_tokenizer
        assert our_rows(translator)[list(target_tokenizer.beginning)] == [number]
        assert set(target_tokenizer.controls) == {*codes, code}
    (copy / "added_tokens.json").write_text(json.dumps({code: 5}))
    with pytest.raises(UserError, match="The languages must have ids of their own"):
        load_multilingual(copy, source, target)
