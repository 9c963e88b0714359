"""Published OPUS-MT models equal transformers'; wrong files are refused in one line."""

import fnmatch
import functools
import json
import pickle
import shutil

import numpy as np
import pytest
import safetensors.numpy

from keras_transformer.bridges import load_opus_mt
from keras_transformer.bridges.opus_mt import _tokenizers, published_rows, read_vocabulary
from keras_transformer.cli import main
from keras_transformer.data import train_sentencepiece
from keras_transformer.decoding import (
    BeamSearch,
    GreedySearch,
    MinimumLength,
    NoRepeatNgrams,
    RepetitionPenalty,
    SuppressTokens,
)
from keras_transformer.errors import UserError
from keras_transformer.inference import Translator
from keras_transformer.training import TrainingSettings
from keras_transformer.training.adaptation import StartingModel
from tests.bridges.published import (
    PORTUGUESE,
    SOURCES,
    TARGETS,
    learn_files,
    published_files,
    save_arrays,
)
from tests.closeness import assert_close
from tests.layers.oracle_parameters import array

CODES = ("<s>", PORTUGUESE, ">>pob<<")


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """Folders of small published models and their translators, by the kind of their files."""

    @functools.cache
    def make(kind):
        folder = tmp_path_factory.mktemp(kind)
        learn_files(folder, CODES if kind == "tc-big" else (), kind == "two")
        save_arrays(folder)
        return folder, load_opus_mt(folder)

    return make


def theirs(folder):
    """The tokenizer and the model of transformers for a folder."""
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.MarianTokenizer.from_pretrained(str(folder))
    return tokenizer, transformers.MarianMTModel.from_pretrained(str(folder)).eval()


def texts_for(translator):
    code = f"{PORTUGUESE} " if translator.source_tokenizer.languages else ""
    return [code + text for text in (*SOURCES, "an unknown ☃ word")]


def padded(rows):
    longest = max(map(len, rows))
    return np.array([[*row, *[0] * (longest - len(row))] for row in rows], "int32")


@pytest.mark.parametrize("kind", ["tc-big", "two"])
def test_logits_equal_transformers(kind, published):
    torch = pytest.importorskip("torch")
    folder, translator = published(kind)
    tokenizer, marian = theirs(folder)
    texts, answers = texts_for(translator), [*TARGETS, "Hund"]
    inputs = tokenizer(texts, text_target=answers, return_tensors="pt", padding=True)
    labels = inputs.pop("labels")
    start = torch.full((len(texts), 1), marian.config.pad_token_id)
    begun = torch.cat([start, labels[:, :-1]], dim=1)
    want = marian(**inputs, decoder_input_ids=begun).logits.detach().numpy()
    source = padded([[*ids, 3] for ids in translator.source_tokenizer.encode_batch(texts)])
    targets = translator.target_tokenizer.encode_batch(answers)
    logits = translator.model({"source": source, "target": padded([[2, *t] for t in targets])})
    name = "target_vocab.json" if kind == "two" else "vocab.json"
    rows = published_rows(read_vocabulary(folder / name))
    for row, target in enumerate(targets):
        end = len(target) + 1
        assert_close(array(logits)[row, :end, 3:], want[row, :end][:, rows[3:]])
    assert array(logits)[:, :, [0, 2]].max() < -50


@pytest.mark.parametrize("beams", [1, 4])
def test_answers_equal_transformers(beams, published):
    folder, translator = published("tc-big")
    tokenizer, marian = theirs(folder)
    translator.extra_length = 12
    assert translator.search == BeamSearch(4, 1.0, length_normalization="length")
    texts = texts_for(translator)
    ours = translator.hypotheses(texts, translator.search if beams > 1 else GreedySearch())
    num_compared = 0
    for text, [answer, *_] in zip(texts, ours, strict=True):
        limit = len(tokenizer(text)["input_ids"]) - 1 + translator.extra_length
        tokens = marian.generate(
            **tokenizer([text], return_tensors="pt"), num_beams=beams, do_sample=False,
            max_new_tokens=limit, bad_words_ids=[[marian.config.pad_token_id]],
            early_stopping="never" if beams > 1 else False, renormalize_logits=True,
            length_penalty=1.0, forced_eos_token_id=marian.config.eos_token_id,
        )  # fmt: skip
        # An end that is forced at the limit costs nothing there; with beams, ours counts it.
        if beams == 1 or len(tokens[0]) <= limit:
            num_compared += bool(answer.text)
            assert answer.text == tokenizer.decode(
                tokens[0], skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
    assert num_compared


def test_rules_of_generation_are_followed_as_transformers_does(published, tmp_path):
    folder = shutil.copytree(published("opus")[0], tmp_path / "model")
    pad = json.loads((folder / "config.json").read_text())["pad_token_id"]
    _, free = theirs(folder)
    rules = {
        "repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "min_new_tokens": 5,
        "bad_words_ids": [[pad], [12]], "suppress_tokens": [20, 21],
    }  # fmt: skip
    change_json("generation_config.json", **rules)(folder)
    translator, (tokenizer, marian) = load_opus_mt(folder), theirs(folder)
    rows = published_rows(read_vocabulary(folder / "vocab.json"))
    assert translator.search.constraints == (
        RepetitionPenalty(1.3), NoRepeatNgrams(2), MinimumLength(6),
        SuppressTokens(sorted(map(rows.index, (12, 20, 21)))),
    )  # fmt: skip
    translator.extra_length, num_changed = 12, 0
    texts = texts_for(translator)
    for text, [answer, *_] in zip(texts, translator.hypotheses(texts), strict=True):
        inputs = tokenizer([text], return_tensors="pt")
        limit = inputs["input_ids"].shape[1] - 1 + translator.extra_length
        options = {"max_new_tokens": limit, "num_beams": 4, "early_stopping": "never"}
        options |= {"renormalize_logits": False, "length_penalty": 1.0}
        [tokens] = marian.generate(**inputs, **options).tolist()
        if len(tokens) <= limit:  # As above.
            assert [pad, *(rows[token] for token in answer.tokens)] == tokens
            num_changed += [tokens] != free.generate(**inputs, **options).tolist()
    assert num_changed


@pytest.mark.parametrize("name", ["en-mg", "tc-big-en-pt"])
def test_ids_of_published_vocabularies_equal_transformers(name):
    pytest.importorskip("tensorflow_text")
    transformers = pytest.importorskip("transformers")
    folder = published_files(name)
    tokenizer = transformers.MarianTokenizer.from_pretrained(str(folder))
    vocabulary = read_vocabulary(folder / "vocab.json")
    tokenizers, rows = _tokenizers(folder, [vocabulary]), np.array(published_rows(vocabulary))
    code = f"{PORTUGUESE} " if tokenizers[0].languages else ""
    texts = [code + text for text in (*SOURCES, *TARGETS, "ﬁ ½ Ａ 日本 🙂 e\u0301\u00a0x", "")]
    for ours, given in zip(tokenizers, ("text", "text_target"), strict=True):
        ids = ours.encode_batch(texts)
        assert [[*rows[row], rows[3]] for row in ids] == tokenizer(**{given: texts})["input_ids"]
        assert ours.in_graph().tokenize(texts).to_list() == ids


@pytest.mark.parametrize("dtype, is_zip", [("float16", True), ("bfloat16", False)])
def test_weights_in_a_file_of_torch_and_in_half_precision(dtype, is_zip, published, tmp_path):
    """Files before torch 1.6 were no zip files."""
    folder, translator = published("opus")
    copy = shutil.copytree(folder, tmp_path / "model")
    change_tensors(copy, lambda torch, tensor: tensor.to(getattr(torch, dtype)), is_zip)
    weights = load_opus_mt(copy).model.get_weights()
    for found, want in zip(weights, translator.model.get_weights(), strict=True):
        np.testing.assert_allclose(found, want, atol=1e-2)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_weights_in_several_files(name, published, tmp_path):
    folder, translator = published("opus")
    copy = shutil.copytree(folder, tmp_path / "model")
    tensors = list(safetensors.numpy.load_file(copy / "model.safetensors").items())
    (copy / "model.safetensors").unlink()
    parts = {}
    for number, part in enumerate((dict(tensors[::2]), dict(tensors[1::2])), start=1):
        file = name.replace(".", f"-0000{number}-of-00002.")
        parts |= dict.fromkeys(part, file)
        if name == "model.safetensors":
            safetensors.numpy.save_file(part, copy / file)
        else:
            torch = pytest.importorskip("torch", reason="needs torch: pip install torch")
            torch.save({key: torch.from_numpy(array) for key, array in part.items()}, copy / file)
    (copy / f"{name}.index.json").write_text(json.dumps({"weight_map": parts}))
    weights = load_opus_mt(copy).model.get_weights()
    for found, want in zip(weights, translator.model.get_weights(), strict=True):
        np.testing.assert_array_equal(found, want)
    (copy / file).unlink()
    for index, message in (
        ({"weight_map": parts}, f"names files that are missing: .'{file}'"),
        ({}, "is damaged: 'weight_map'"),
        ({"weight_map": {}}, "is damaged: it names no files"),
        ({"weight_map": {"a": 1}}, "is damaged"),
    ):
        (copy / f"{name}.index.json").write_text(json.dumps(index))
        with pytest.raises(UserError, match=f"{name}.index.json' {message}"):
            load_opus_mt(copy)


def test_a_source_has_at_most_the_published_positions(published, tmp_path):
    copy = shutil.copytree(published("tc-big")[0], tmp_path / "model")
    change_json("config.json", max_position_embeddings=16)(copy)
    translator = load_opus_mt(copy)
    assert translator.max_source_length == 16
    parts = translator.split(f"{PORTUGUESE} " + "A dog runs. " * 6)
    assert len(parts) > 1
    assert all(part.tags.strip() == PORTUGUESE and len(part.ids) < 16 for part in parts)


def command(capfd, *arguments):
    """Calls the command line in this process; returns its status and its errors."""
    status = main([str(argument) for argument in arguments])
    return status, capfd.readouterr().err


def test_the_command_writes_a_model_directory_that_keeps_all(published, capfd, tmp_path):
    source = shutil.copytree(published("tc-big")[0], tmp_path / "source")
    (source / "README.md").write_text("---\nlanguage: pt\nlicense: cc-by-4.0\n---\n# Model\n")
    status, errors = command(capfd, "import", source, "--output", tmp_path / "model")
    assert status == 0, errors
    assert f"wrote {tmp_path / 'model'}: {source}, license cc-by-4.0" in errors
    assert errors.endswith(f"target language: {PORTUGUESE}, >>pob<<\n")
    translator, expected = Translator.load(tmp_path / "model"), load_opus_mt(source)
    assert translator.origin == {"name": str(source), "license": "cc-by-4.0"}
    texts = texts_for(expected)
    for found, other in zip(translator.tokenizers, expected.tokenizers, strict=True):
        assert found.encode_batch(texts) == other.encode_batch(texts)
    weights = zip(translator.model.get_weights(), expected.model.get_weights(), strict=True)
    assert all(np.array_equal(found, other) for found, other in weights)
    assert (translator.model.config, translator.search) == (expected.model.config, expected.search)
    with pytest.raises(UserError, match=f"target language: {PORTUGUESE}, >>pob<<. Received: "):
        translator.translate(["a dog"])


def test_a_line_without_the_code_of_its_language_is_named_before_the_work(
    published, capfd, tmp_path, monkeypatch
):
    _, translator = published("tc-big")
    translator.save(tmp_path / "model")
    (tmp_path / "in.txt").write_text(f"{PORTUGUESE} a dog\n" * 6 + "\na dog\n")
    monkeypatch.setattr(Translator, "translate", None)
    command_line = ["translate", "--model", tmp_path / "model", "--input", tmp_path / "in.txt"]
    status, errors = command(capfd, *command_line, "--chunk-size", 3)
    assert status == 2 and "in.txt', line 8: A text for this model must begin" in errors
    status, errors = command(capfd, *command_line, "--target-language", "por")
    assert status == 2 and f"such as {PORTUGUESE}; no option chooses it" in errors


def test_another_vocabulary_needs_a_code(published, tmp_path):
    published("tc-big")[1].save(tmp_path)
    settings = TrainingSettings(start_from=str(tmp_path), preset="tiny")
    lines = [f"{PORTUGUESE} a dog", "um cachorro"]
    with pytest.raises(UserError, match=f"a symbol .* Received: one without .*{PORTUGUESE}"):
        StartingModel(settings, [train_sentencepiece(lines, 290), None])
    StartingModel(settings, [train_sentencepiece(lines, 290, symbols=[PORTUGUESE]), None])


@pytest.mark.parametrize("kind", ["other", "imported"])
def test_the_command_replaces_its_own_model_alone(published, capfd, tmp_path, kind):
    folder, translator = published("opus")
    translator.save(tmp_path)
    if kind == "other":
        (tmp_path / "thesis.txt").write_text("years of work")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    status, errors = command(capfd, "import", folder, "--output", tmp_path)
    assert before == {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert (status == 0) == (kind == "imported"), errors
    assert kind == "imported" or (errors.count("\n") == 1 and repr(str(tmp_path)) in errors)


def test_a_name_on_the_hub_is_read_from_its_cache(published, tmp_path, monkeypatch):
    pytest.importorskip("huggingface_hub")
    root, revision = (
        tmp_path / "models--Somebody--opus-mt-en-de",
        "0123456789abcdef" * 2 + "01234567",
    )
    (root / "refs").mkdir(parents=True)
    (root / "refs" / "main").write_text(revision)
    shutil.copytree(published("opus")[0], root / "snapshots" / revision)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert load_opus_mt("Somebody/opus-mt-en-de").origin["name"] == "Somebody/opus-mt-en-de"
    for source, message in (("Somebody/other", "'Somebody/other' is not a folder, and cannot be"),
                            ("nothing", "neither a folder nor the name"),
                            (__file__, "is a file")):  # fmt: skip
        with pytest.raises(UserError, match=message):
            load_opus_mt(source)


@pytest.mark.parametrize("is_split", [False, True])
def test_a_download_takes_the_files_that_are_needed(is_split, published, tmp_path, monkeypatch):
    pytest.importorskip("torch", reason="needs torch: pip install torch")
    pytest.importorskip("huggingface_hub")
    source = shutil.copytree(published("opus")[0], tmp_path / "hub")
    (source / "model.fp16.safetensors").touch()
    change_json("config.json", _name_or_path="./")(source)
    change_tensors(source, lambda torch, tensor: tensor)
    if is_split:
        (source / "pytorch_model.bin").rename(source / "pytorch_model-00001-of-00001.bin")
        parts = {"weight_map": {"model.shared.weight": "pytorch_model-00001-of-00001.bin"}}
        (source / "pytorch_model.bin.index.json").write_text(json.dumps(parts))
    (tmp_path / "cache").mkdir()

    def snapshot_download(name, allow_patterns):
        assert name == "Somebody/model"
        for path in source.iterdir():
            if any(fnmatch.fnmatch(path.name, pattern) for pattern in allow_patterns):
                shutil.copy(path, tmp_path / "cache")
        return tmp_path / "cache"

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    assert load_opus_mt("Somebody/model").origin["name"] == "Somebody/model"
    assert not (tmp_path / "cache/model.fp16.safetensors").exists()


class Executes:
    def __reduce__(self):
        return (open, ("executed", "w"))


def change_json(name, **changes):
    def change(folder):
        values = json.loads((folder / name).read_text()) | changes
        text = json.dumps({key: value for key, value in values.items() if value is not None})
        (folder / name).write_text(text)

    return change


def change_tensors(folder, change, is_zip=True):
    """Writes the weights as a file of torch, with other embeddings."""
    torch = pytest.importorskip("torch", reason="needs torch: pip install torch")
    from safetensors.torch import load_file

    tensors = load_file(folder / "model.safetensors")
    tensors["model.shared.weight"] = change(torch, tensors["model.shared.weight"])
    (folder / "model.safetensors").unlink()
    options = {"_use_new_zipfile_serialization": is_zip}
    torch.save(tensors, folder / "pytorch_model.bin", **options)


def truncate(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def write_pickle(folder):
    pytest.importorskip("torch")
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Executes()))


WRONG = [
    (lambda folder: (folder / "source.spm").unlink(), "with BPE alone. Received: .*source.spm"),
    (lambda folder: (folder / "model.safetensors").unlink(), "safetensors or pytorch_model.bin"),
    (truncate, "model.safetensors' cannot be read: it is damaged"),
    (write_pickle, "pytorch_model.bin' cannot be read: .*more than tensors"),
    (
        lambda folder: change_tensors(folder, lambda torch, tensor: tensor.to_sparse()),
        "'model.shared.weight' is not a dense tensor",
    ),
    (lambda folder: change_tensors(folder, lambda torch, tensor: tensor / 0), "not finite"),
    (change_json("vocab.json", **{"</s>": 1}), "must give the ids from 0 to"),
    (change_json("config.json", activation_function="x"), "activation_function='x'"),
    (change_json("config.json", decoder_attention_heads=2), r"attention_heads=\[4, 2\]"),
    (change_json("config.json", encoder_layers=3), "has .* numbers, fewer than"),
    (change_json("config.json", d_model=2**30), "must have the shape"),
    (change_json("generation_config.json", eos_token_id=5), "model': .*eos_token_id=5"),
    (change_json("generation_config.json", num_beams=10**9), "beam_size="),
    (change_json("generation_config.json", encoder_repetition_penalty=2), "repetition_penalty=2"),
    (
        change_json("generation_config.json", num_beams=1, repetition_penalty=2),
        "repetition_penalty=2",
    ),
    (change_json("generation_config.json", bad_words_ids=[[5, 6]]), r"bad_words_ids=\[\[5, 6\]\]"),
    (change_json("generation_config.json", suppress_tokens=[0]), r"suppress_tokens=\[0\]"),
]


@pytest.mark.parametrize("change, message", WRONG)
def test_wrong_files_are_named_in_one_line(change, message, published, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = shutil.copytree(published("opus")[0], tmp_path / "model")
    change(folder)
    with pytest.raises(UserError, match=message) as raised:
        load_opus_mt(folder)
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 600
    assert not (tmp_path / "executed").exists()
