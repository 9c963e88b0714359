"""Tokenizers in the graph give the ids and the text that Python gives, also out of a SavedModel."""

import gzip
import json
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.data import (
    SubwordTokenizer,
    build_subword_vocabulary,
    save_tokenizer,
    train_sentencepiece,
)


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


def test_hostile_text_and_random_bytes_have_the_same_ids_as_in_python(tokenizer, hostile_bytes):
    generator = np.random.default_rng(0)
    parts = [b"a", b" ", b"\0", b"\xc3", b"\xa9", b"\xe2\x82", b"\xf0\x9f\x98\x80", b"\xed\xa0\x80"]
    parts += [b"\xf4\x90\x80\x80", b"\xff", b"two", b"@@ ", "é".encode(), b"\xe2\x81\x87"]
    lengths = generator.integers(0, 12, 1500)
    texts = [b"".join(parts[n] for n in generator.integers(0, len(parts), k)) for k in lengths]
    _assert_same_ids(tokenizer, tokenizer.in_graph(), hostile_bytes + texts)


@pytest.mark.slow
def test_real_lines_have_the_same_ids_as_in_python(multi30k, multi30k_lines, multi30k_tokenizer):
    texts = [line.encode() for line in multi30k_lines]
    _assert_same_ids(multi30k_tokenizer, multi30k_tokenizer.in_graph(), texts)
    path = multi30k / "bpe10k.train.de.gz"
    subwords = build_subword_vocabulary(path, min_count=2)  # so that some are unknown
    _assert_same_ids(subwords, subwords.in_graph(), gzip.open(path).read().splitlines())


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
    assert tokenizer.in_graph().detokenize(np.zeros((2, 0), np.int32)).numpy().tolist() == [b""] * 2


def test_empty_batches_work(tokenizer):
    graph = tokenizer.in_graph()
    assert graph.tokenize(tf.constant([], tf.string)).to_list() == []
    assert graph.detokenize(tf.zeros((0, 5), tf.int32)).shape == (0,)


_FRESH = """
import json, sys
import tensorflow as tf

def run(path):
    loaded = tf.saved_model.load(path)
    ids = loaded.tokenize(texts)
    return [ids.to_list(), [text.hex() for text in loaded.detokenize(ids.to_tensor()).numpy()]]

texts = tf.constant([bytes.fromhex(text) for text in json.loads(sys.argv[3])])
subwords = run(sys.argv[1])
import tensorflow_text
print(json.dumps([subwords, run(sys.argv[2])]))
"""


@pytest.mark.slow
def test_saved_models_need_nothing_of_ours(tmp_path, hostile_bytes):
    """A fresh process, our files deleted; subwords need no tensorflow_text either."""
    tokenizers = [
        SubwordTokenizer(["the", "two", "a@@", "b", "spaces"]),
        train_sentencepiece(["the red house", "two blue doors 你好"], 285),
    ]
    for number, tokenizer in enumerate(tokenizers):
        path = save_tokenizer(tokenizer, tmp_path)
        tf.saved_model.save(tokenizer.in_graph(), str(tmp_path / f"saved{number}"))
        path.unlink()
    texts = [text for text in hostile_bytes if len(text) < 200]
    folders = [str(tmp_path / "saved0"), str(tmp_path / "saved1")]
    command = [sys.executable, "-c", _FRESH, *folders, json.dumps([text.hex() for text in texts])]
    process = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    answers = json.loads(process.stdout.splitlines()[-1])
    for tokenizer, (ids, decoded) in zip(tokenizers, answers, strict=True):
        assert ids == tokenizer.encode_batch([text.decode("utf-8", "replace") for text in texts])
        assert [bytes.fromhex(text).decode() for text in decoded] == tokenizer.decode_batch(ids)
