"""Tokenizers in the graph give the ids and the text that Python gives, also out of a SavedModel."""

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.data import (
    SubwordTokenizer,
    train_sentencepiece,
)

# Text that has broken tokenizers before.
HOSTILE = [
    *(b"", b" ", b"\n", b"a\0b", b"\0", b"\x01x\x7f"),
    b"  two  spaces\tand a tab ",
    "😀 grins, 👩‍👩‍👧‍👦 a family".encode(),
    "你好，世界".encode(),
    "no\u00a0break\u3000wide\u2028line\u0085next\x1cseparator".encode(),
    "e\u0301 composed, ﬁ ligature, ① circled, \ufeff mark".encode(),
    "<s> text that spells </s> <pad> <unk> ▁ @@ a@@ b ⁇".encode(),
    b"\xff\xfe broken \xc3 bytes \xe2\x82",
    b"\xed\xa0\x80 a surrogate, \xc0\x80 an overlong NUL",
    b"caf\xe9 in latin-1",
    ("word " * 400).encode(),
]


@pytest.fixture(scope="module", params=["bpe", "unigram", "subwords"])
def tokenizer(request):
    lines = ["the red house", "the blue house", "a red door and a blue door", "你好 two spaces"] * 3
    if request.param == "subwords":
        return SubwordTokenizer(["the", "x\0", "two", "a@@", "b", "@@", "a\u00a0b", "<0x00>", "⁇"])
    return train_sentencepiece(lines, {"bpe": 290, "unigram": 280}[request.param], request.param)


def _assert_same_ids(tokenizer, graph, texts):
    """Both ways of bytes: as they are in the graph, replaced as Python does outside of it."""
    ragged = graph.tokenize(tf.constant(texts))
    assert ragged.dtype == tf.int32
    expected = tokenizer.encode_batch([text.decode("utf-8", "replace") for text in texts])
    assert ragged.to_list() == expected
    detokenized = graph.detokenize(ragged.to_tensor())
    assert [text.decode() for text in detokenized.numpy()] == tokenizer.decode_batch(expected)


def test_hostile_text_and_random_bytes_have_the_same_ids_as_in_python(tokenizer):
    generator = np.random.default_rng(0)
    parts = [b"a", b" ", b"\0", b"\xc3", b"\xa9", b"\xe2\x82", b"\xf0\x9f\x98\x80", b"\xed\xa0\x80"]
    parts += [b"\xf4\x90\x80\x80", b"\xff", b"two", b"@@ ", "é".encode(), b"\xe2\x81\x87"]
    lengths = generator.integers(0, 12, 1500)
    texts = [b"".join(parts[n] for n in generator.integers(0, len(parts), k)) for k in lengths]
    _assert_same_ids(tokenizer, tokenizer.in_graph(), HOSTILE + texts)


def test_detokenize_treats_reserved_and_unknown_ids_as_python_does(tokenizer):
    generator = np.random.default_rng(0)
    ids = generator.integers(-2, tokenizer.vocab_size + 3, (200, 12))
    ids = np.where(generator.random(ids.shape) < 0.3, generator.integers(0, 4, ids.shape), ids)
    # Bytes in any order make invalid UTF-8, which has no one right text: leave them out.
    pieces = [
        "" if not 0 <= i < tokenizer.vocab_size else tokenizer.pieces([i])[0] for i in ids.flat
    ]
    is_byte = np.array([piece.startswith("<0x") for piece in pieces]).reshape(ids.shape)
    ids = np.where(is_byte, 1, ids).astype(np.int32)
    text = tokenizer.in_graph().detokenize(ids).numpy()
    assert [row.decode() for row in text] == tokenizer.decode_batch(ids)
