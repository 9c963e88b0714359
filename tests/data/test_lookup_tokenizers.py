"""Pieces of SentencePiece, or of text that is split already, are looked up in a vocabulary."""

import io
import json

import pytest
import sentencepiece

from keras_transformer.data import (
    BOS_ID,
    EOS_ID,
    PAD_ID,
    UNK_ID,
    MappedTokenizer,
    SubwordTokenizer,
    build_subword_vocabulary,
    load_tokenizer,
    save_tokenizer,
)
from keras_transformer.errors import UserError

LINES = ["the red house", "the blue house", "a red door", "a blue door opens", "doors are red"]
# Texts with unknown characters, codes, white space that is normalized, bytes that are no text.
TEXTS = [
    "the red door", "  a   blue\u00a0house ", "", "   ", "日本 house", "the日red", "</s> <pad> red",
    ">>por<< the red house", ">>xxx<< a door", ">> a red << door", ">>por<<", ">>", "<< >>",
    ">>a\nb<< red", "red >>por<< house", "\u2581red", "ﬁve ½ Ａ", "é e\u0301 ß", "a\x00b",
    "\ud800 red",
]  # fmt: skip


def learned(text):
    """A SentencePiece model with ids of its own and no bytes, as Marian learns it, as bytes."""

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text), model_writer=model, vocab_size=30, minloglevel=2,
        model_type="unigram", hard_vocab_limit=False, character_coverage=1.0,
    )  # fmt: skip
    return model.getvalue()


@pytest.fixture(scope="module")
def model():
    return learned(LINES * 3)


@pytest.fixture(scope="module")
def tokenizer(model):
    """Its vocabulary is in another order, has a piece and a code of its own and lacks a piece."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    pieces = [processor.id_to_piece(number) for number in range(3, processor.get_piece_size())]
    return MappedTokenizer(model, [">>por<<", "extra", *reversed(pieces[:-1])])


def reference(tokenizer, model, text):
    """As transformers' `MarianTokenizer`: the code is cut off, and each piece looked up."""
    ids = {
        piece: n for n, piece in enumerate(tokenizer.pieces(range(tokenizer.vocab_size))) if n > 3
    }
    pieces = []
    text = text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    if text.startswith(">>") and (end := text.find("<<")) != -1:
        pieces, text = [text[: end + 2]], text[end + 2 :]
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [ids.get(piece, 1) for piece in pieces + processor.encode(text, out_type=str)]


@pytest.mark.parametrize("text", TEXTS)
def test_ids_are_those_of_the_pieces(tokenizer, model, text):
    assert tokenizer.encode(text) == reference(tokenizer, model, text)


def test_ids_and_texts_in_the_graph_are_those_of_python(tokenizer):
    pytest.importorskip("tensorflow_text")
    graph = tokenizer.in_graph()
    texts = [text for text in TEXTS if "\ud800" not in text]
    encoded = tokenizer.encode_batch(texts)
    assert graph.tokenize(texts).to_list() == encoded
    ids = graph.tokenize(texts).to_tensor()
    assert [text.decode() for text in graph.detokenize(ids).numpy()] == [
        tokenizer.decode(row) for row in ids.numpy()
    ]


@pytest.mark.parametrize("text", ["the red house", ">>deu<< the red house"])
def test_a_text_without_a_language_of_the_model_is_refused(tokenizer, text):
    languages = tokenizer.pieces([4])
    strict = MappedTokenizer(
        tokenizer.model, tokenizer.pieces(range(4, tokenizer.vocab_size)), languages
    )
    texts = [">>por<< red", "", " ", "\u3000", "\xa0"]
    encoded = strict.encode_batch(texts)
    assert encoded[0][0] == 4 and not any(encoded[1:])
    with pytest.raises(UserError, match="must begin with the code of its target language: >>por<<"):
        strict.encode_batch([">>por<< red", text])
    pytest.importorskip("tensorflow_text")
    # In a graph, it does not fail the other texts.
    assert strict.in_graph().tokenize([*texts, text]).to_list() == [*encoded, []]


@pytest.mark.parametrize("change, message", [
    (lambda values: values.update(pieces=[7]), "must be text"),
    (lambda values: values.update(languages=[">>fra<<"]), "Received: '>>fra<<'"),
])  # fmt: skip
def test_a_damaged_file_is_refused(tokenizer, tmp_path, change, message):
    path = save_tokenizer(tokenizer, tmp_path)
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))
    with pytest.raises(UserError, match=f"tokenizer.json' cannot be loaded: .*{message}"):
        load_tokenizer(tmp_path)
    path.write_text(path.read_text()[:-9])
    with pytest.raises(UserError, match="damaged"):
        load_tokenizer(tmp_path)


def test_the_most_frequent_piece_comes_first_and_ties_do_not_depend_on_the_order():
    tokenizer = build_subword_vocabulary(["b a a", "c@@ d b a"])
    expected = ["<pad>", "<unk>", "<s>", "</s>", "a", "b", "c@@", "d"]
    assert tokenizer.pieces(range(tokenizer.vocab_size)) == expected
    assert build_subword_vocabulary(["c@@ d b a", "b a a"]).pieces(range(8)) == expected
    assert build_subword_vocabulary(["b a a"], max_size=5).vocab_size == 5
    assert build_subword_vocabulary(["b a a"], min_count=2).encode("a b") == [4, UNK_ID]


def test_decode_joins_at_the_marks_as_subword_nmt_does():
    tokenizer = SubwordTokenizer(["pul@@", "ley", "system", "@@", "x@@y"])
    assert tokenizer.decode(tokenizer.encode("pul@@ ley system")) == "pulley system"
    assert tokenizer.decode(tokenizer.encode("system pul@@")) == "system pul"
    ids = tokenizer.encode("system")
    assert tokenizer.decode([BOS_ID, *ids, PAD_ID, EOS_ID, *ids]) == "system"
    assert tokenizer.decode([UNK_ID, *ids, 99, -3]) == "<unk> system <unk> <unk>"


def test_text_cannot_spell_the_reserved_ids():
    tokenizer = build_subword_vocabulary(["a <s> </s> <pad> <unk> a"])
    assert tokenizer.vocab_size == 5
    assert tokenizer.encode("a </s> <pad> <s>") == [4, UNK_ID, UNK_ID, UNK_ID]


@pytest.mark.parametrize("pieces, message", [
    (["a b"], "Received: piece='a b'"),
    (["a", "b", "a"], "Received: 'a' twice"),
])  # fmt: skip
def test_wrong_pieces_are_user_errors(pieces, message):
    with pytest.raises(UserError, match=message):
        SubwordTokenizer(pieces)


def test_what_a_vocabulary_cannot_be_built_of_is_named():
    with pytest.raises(UserError, match="is empty"):
        build_subword_vocabulary(["", " "])
    with pytest.raises(UserError, match="has no word that occurs 2 times"):
        build_subword_vocabulary(["a b", "c"], min_count=2)
    with pytest.raises(ValueError, match="max_size=4"):
        build_subword_vocabulary(["a"], max_size=4)
