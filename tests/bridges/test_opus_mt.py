"""Published OPUS-MT models against transformers: ids, logits, answers; files that are wrong."""

import functools
import json
import pickle
import struct

import numpy as np
import pytest

from keras_transformer.bridges import load_opus_mt
from keras_transformer.decoding import GreedySearch
from keras_transformer.errors import UserError
from keras_transformer.inference import Translator
from tests.bridges.published import (
    PORTUGUESE,
    SOURCES,
    TARGETS,
    copy_files,
    published_files,
    save_model,
    small_model,
)
from tests.layers.oracle_parameters import array

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
PAIRS = {"opus": ((), False), "tc-big": (("<s>", PORTUGUESE, ">>pob<<"), False), "two": ((), True)}


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """Folders of small published models and transformers' models, by the kind of their files."""

    @functools.cache
    def make(name):
        folder = tmp_path_factory.mktemp(name)
        codes, separate = PAIRS[name]
        kind = "tc-big" if name == "tc-big" else "opus"
        return folder, small_model(folder, kind, codes, separate)

    return make


def texts_for(translator):
    code = f"{PORTUGUESE} " if translator.source_tokenizer.languages else ""
    return [code + text for text in (*SOURCES, "an unknown ☃ word", "dogs")]


def row_ids(translator, folder):
    """Published id by our id, for the target."""
    path = folder / "target_vocab.json"
    vocabulary = json.loads((path if path.exists() else folder / "vocab.json").read_text())
    pieces = translator.target_tokenizer.pieces(range(translator.target_tokenizer.vocab_size))
    pieces[2] = "<pad>"
    return [vocabulary[piece.removesuffix("_") if piece == "<s>_" else piece] for piece in pieces]


@pytest.mark.parametrize("name", PAIRS)
def test_logits_equal_transformers(name, published):
    folder, marian = published(name)
    translator = load_opus_mt(folder)
    tokenizer = transformers.MarianTokenizer.from_pretrained(str(folder))
    texts = texts_for(translator)[:4]
    theirs = tokenizer(texts, text_target=TARGETS + ["Hund"], return_tensors="pt", padding=True)
    labels = theirs.pop("labels")
    start = torch.full((len(texts), 1), marian.config.pad_token_id)
    inputs = torch.cat([start, labels[:, :-1]], dim=1)
    want = marian(**theirs, decoder_input_ids=inputs).logits.detach().numpy()
    encode = translator.source_tokenizer.encode_batch, translator.target_tokenizer.encode_batch
    source = padded([[*ids, 3] for ids in encode[0](texts)])
    targets = encode[1](TARGETS + ["Hund"])
    logits = array(
        translator.model({"source": source, "target": padded([[2, *t] for t in targets])})
    )
    ids = row_ids(translator, folder)
    for row, target in enumerate(targets):
        end = len(target) + 1
        np.testing.assert_allclose(
            logits[row, :end, 3:], want[row, :end][:, ids[3:]], rtol=0, atol=1e-4
        )
    assert array(logits)[:, :, [0, 2]].max() < -50


def padded(rows):
    longest = max(map(len, rows))
    return np.array([[*row, *[0] * (longest - len(row))] for row in rows], "int32")


@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize("name", PAIRS)
def test_answers_equal_transformers(name, beams, published):
    folder, marian = published(name)
    translator = load_opus_mt(folder)
    translator.extra_length = 12
    texts = texts_for(translator)
    search = GreedySearch() if beams == 1 else None
    if search is None:
        search = translator.search.__class__(
            beam_size=beams, length_penalty=1.0, length_normalization="length"
        )
    ours = translator.hypotheses(texts, search)
    tokenizer = transformers.MarianTokenizer.from_pretrained(str(folder))
    num_compared = 0
    for text, [answer, *_] in zip(texts, ours, strict=True):
        limit = len(tokenizer(text)["input_ids"]) - 1 + translator.extra_length
        tokens = marian.generate(
            **tokenizer([text], return_tensors="pt"), num_beams=beams, do_sample=False,
            max_new_tokens=limit, bad_words_ids=[[marian.config.pad_token_id]],
            early_stopping="never" if beams > 1 else False, renormalize_logits=True,
            length_penalty=1.0,
        )  # fmt: skip
        # At the limit, transformers cuts hypotheses off, and ours end.
        if tokens[0, -1] == marian.config.eos_token_id and len(tokens[0]) <= limit:
            num_compared += 1
            assert answer.text == tokenizer.decode(
                tokens[0], skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
    assert num_compared


@pytest.mark.parametrize("name", ["en-mg", "tc-big-en-pt"])
def test_ids_of_published_vocabularies_equal_transformers(name, request):
    pytest.importorskip("tensorflow_text")
    folder = published_files(name)
    theirs = transformers.MarianTokenizer.from_pretrained(str(folder))
    from keras_transformer.bridges.opus_mt import _read_vocabulary, _tokenizers

    vocabulary = _read_vocabulary(folder / "vocab.json")
    tokenizers = _tokenizers(folder, [vocabulary])
    code = f"{PORTUGUESE} " if tokenizers[0].languages else ""
    texts = [code + text for text in (*SOURCES, *TARGETS, "ﬁ ½ Ａ 日本 🙂 e\u0301\u00a0x", "")]
    from keras_transformer.bridges.opus_mt import _published_rows

    rows = np.array(_published_rows(vocabulary))
    for tokenizer, given in zip(tokenizers, ("text", "text_target"), strict=True):
        ids = theirs(**{given: texts})["input_ids"]
        ours = tokenizer.encode_batch(texts)
        assert [[*rows[row], rows[3]] for row in ours] == ids
        assert tokenizer.in_graph().tokenize(texts).to_list() == ours


@pytest.mark.parametrize("options", [{"safe": False}, {"dtype": "float16"}])
def test_other_files_of_weights(options, tmp_path):
    small_model(tmp_path, **options)
    model = load_opus_mt(tmp_path).model
    small_model(tmp_path)
    expected = load_opus_mt(tmp_path).model.get_weights()
    for found, want in zip(model.get_weights(), expected, strict=True):
        np.testing.assert_allclose(found, want, atol=2e-3 if "dtype" in options else 0)


def test_a_model_directory_keeps_all(published, tmp_path):
    folder, _ = published("tc-big")
    (folder / "README.md").write_text("---\nlanguage: pt\nlicense: cc-by-4.0\n---\n# Model\n")
    translator = load_opus_mt(folder)
    assert translator.origin == {"name": str(folder), "license": "cc-by-4.0"}
    assert translator.search.beam_size == 4
    assert translator.search.length_normalization == "length"
    translator.save(tmp_path)
    again = Translator.load(tmp_path)
    texts = texts_for(translator)
    assert again.translate(texts) == translator.translate(texts)
    assert again.origin == translator.origin and again.search == translator.search


def test_the_language_is_needed_and_stays_with_each_part_of_a_text(published):
    folder, _ = published("tc-big")
    translator = load_opus_mt(folder)
    for text in ("a dog", ">>deu<< a dog"):
        with pytest.raises(UserError, match=f"target language: {PORTUGUESE}, >>pob<<. Received: "):
            translator.translate([text])
    translator.max_source_length = 12
    [parts] = [translator._split(part) for [part] in translator._encode([
        f"{PORTUGUESE} {SOURCES[0]} {SOURCES[1]}"
    ])]  # fmt: skip
    code = translator.source_tokenizer.encode(PORTUGUESE)
    assert len(parts) > 2 and all(part.ids[:1] == code for part in parts)


def test_a_name_on_the_hub_is_read_from_its_cache(published, tmp_path, monkeypatch):
    pytest.importorskip("huggingface_hub")
    folder, _ = published("opus")
    revision = "0123456789abcdef0123456789abcdef01234567"
    root = tmp_path / "hub" / "models--Somebody--opus-mt-en-de"
    snapshot = root / "snapshots" / revision
    snapshot.mkdir(parents=True)
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text(revision)
    for path in folder.iterdir():
        (snapshot / path.name).symlink_to(path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    translator = load_opus_mt("Somebody/opus-mt-en-de")
    assert translator.origin["name"] == "Somebody/opus-mt-en-de"
    with pytest.raises(UserError, match="'Somebody/other' cannot be downloaded"):
        load_opus_mt("Somebody/other")


class Executes:
    def __reduce__(self):
        return (open, ("executed", "w"))


def _change_json(name, **changes):
    def change(folder):
        values = json.loads((folder / name).read_text()) | changes
        text = json.dumps({key: value for key, value in values.items() if value is not None})
        (folder / name).write_text(text)

    return change


def _truncate(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def _declare_terabytes(folder):
    shape = [10**12, 10]
    header = {"model.shared.weight": {"dtype": "F32", "shape": shape, "data_offsets": [0, 10**13]}}
    content = json.dumps(header).encode()
    path = folder / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(content)) + content)


def _long_header(folder):
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 10**13) + b"{}")


def _pickle(folder):
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Executes()))


def _other_vocabulary(folder):
    vocabulary = json.loads((folder / "vocab.json").read_text())
    pad = vocabulary.pop("<pad>")
    text = json.dumps(vocabulary | {"more": pad, "<pad>": pad + 1})
    (folder / "vocab.json").write_text(text)
    _change_json("config.json", pad_token_id=pad + 1, decoder_start_token_id=pad + 1)(folder)


WRONG = {
    **{
        f"no {name}": (lambda folder, name=name: (folder / name).unlink(), message)
        for name, message in {
            "config.json": "config.json' is missing",
            "vocab.json": "vocab.json' is missing",
            "source.spm": "not those with BPE alone. Received: .*without source.spm",
            "target.spm": "not those with BPE alone. Received: .*without target.spm",
            "model.safetensors": "model.safetensors or pytorch_model.bin",
        }.items()
    },
    "truncated": (_truncate, "model.safetensors' is damaged"),
    "10 TB": (_declare_terabytes, "model.safetensors' is damaged"),
    "10 TB of header": (_long_header, "model.safetensors' is damaged"),
    "executes": (_pickle, "pytorch_model.bin' cannot be read: .*more than tensors"),
    "vocabulary": (_other_vocabulary, "'model.shared.weight' must have the shape .*Received: "),
    "ids twice": (_change_json("vocab.json", **{"</s>": 1}), "must give the ids from 0 to"),
    "no padding": (_change_json("vocab.json", **{"<pad>": None}), "lacks the piece '<pad>'"),
    "architecture": (_change_json("config.json", model_type="t5"), "model_type='t5'"),
    "pre-norm": (_change_json("config.json", normalize_before=True), "normalize_before=True"),
    "activation": (_change_json("config.json", activation_function="x"), "activation_function='x'"),
    "unscaled": (_change_json("config.json", scale_embedding=None), "scale_embedding=False"),
    "heads": (_change_json("config.json", decoder_attention_heads=2), r"attention_heads=\[4, 2\]"),
    "layers": (_change_json("config.json", encoder_layers=3), "has .* numbers, fewer than"),
    "wide": (_change_json("config.json", d_model=64), "must have the shape"),
    "huge": (_change_json("config.json", d_model=2**30), "must have the shape"),
    "end": (_change_json("config.json", eos_token_id=5), "eos_token_id=5"),
    "beams": (_change_json("generation_config.json", num_beams=0), "num_beams|beam_size"),
}  # fmt: skip


@pytest.fixture(scope="module")
def right(tmp_path_factory):
    folder = tmp_path_factory.mktemp("right")
    small_model(folder)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_files_are_named_in_one_line(case, right, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "model"
    folder.mkdir()
    for name, content in right.items():
        (folder / name).write_bytes(content)
    change, message = WRONG[case]
    change(folder)
    with pytest.raises(UserError, match=message) as raised:
        load_opus_mt(folder)
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 600
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("source, message", [
    ("nothing", "neither a folder nor the name"), (__file__, "is a file"),
])  # fmt: skip
def test_no_model_is_named(source, message):
    with pytest.raises(UserError, match=message):
        load_opus_mt(source)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["en-mg", "tc-big-en-pt"])
def test_a_published_configuration_has_the_logits_of_transformers(name, tmp_path):
    folder = copy_files(name, tmp_path / name)
    settings = json.loads((folder / "config.json").read_text())
    kept = [key for key in settings if key.startswith(("encoder_", "decoder_a", "decoder_f"))]
    kept += ["decoder_layers", "d_model", "activation_function", "num_beams"]
    marian = save_model(folder, bias=2.0, **{key: settings[key] for key in kept})
    translator = load_opus_mt(folder)
    tokenizer = transformers.MarianTokenizer.from_pretrained(str(folder))
    texts = texts_for(translator)[:3]
    theirs = tokenizer(texts, text_target=TARGETS, return_tensors="pt", padding=True)
    labels = theirs.pop("labels")
    start = torch.full((len(texts), 1), marian.config.pad_token_id)
    inputs = torch.cat([start, labels[:, :-1]], dim=1)
    want = marian(**theirs, decoder_input_ids=inputs).logits.detach().numpy()
    source = padded([[*ids, 3] for ids in translator.source_tokenizer.encode_batch(texts)])
    targets = translator.target_tokenizer.encode_batch(TARGETS)
    logits = array(
        translator.model({"source": source, "target": padded([[2, *t] for t in targets])})
    )
    ids = row_ids(translator, folder)
    for row, target in enumerate(targets):
        end = len(target) + 1
        np.testing.assert_allclose(
            logits[row, :end, 3:], want[row, :end][:, ids[3:]], rtol=0, atol=1e-4
        )
