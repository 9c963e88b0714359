"""Published OPUS-MT models against transformers: ids, logits, answers; files that are wrong."""

import functools
import json

import numpy as np
import pytest

from keras_transformer.bridges import load_opus_mt
from keras_transformer.decoding import GreedySearch
from tests.bridges.published import (
    PORTUGUESE,
    SOURCES,
    TARGETS,
    published_files,
    small_model,
)
from tests.closeness import assert_close
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


@pytest.mark.parametrize("name", ["tc-big", "two", pytest.param("opus", marks=pytest.mark.slow)])
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
        assert_close(logits[row, :end, 3:], want[row, :end][:, ids[3:]])
    assert array(logits)[:, :, [0, 2]].max() < -50


def padded(rows):
    longest = max(map(len, rows))
    return np.array([[*row, *[0] * (longest - len(row))] for row in rows], "int32")


@pytest.mark.parametrize(
    "name, beams",
    [
        ("tc-big", 4),
        ("two", 1),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [("tc-big", 1), ("two", 4), ("opus", 1), ("opus", 4)]
        ),
    ],
)
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
            length_penalty=1.0, forced_eos_token_id=marian.config.eos_token_id,
        )  # fmt: skip
        # An end that is forced at the limit costs nothing there; with beams, ours counts it.
        if beams == 1 or len(tokens[0]) <= limit:
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
