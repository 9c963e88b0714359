"""BPE-dropout: the merges of sentencepiece, with the same random numbers in every process."""

import collections

import pytest
from sentencepiece import sentencepiece_model_pb2

from keras_transformer.data import SentencePieceTokenizer, train_sentencepiece

LINES = ["the red house", "the blue house", "a red door and a blue door", "rotes Häuschen"] * 3
TEXTS = ["the red house and a blue door", "häuser", "a  b ▁▁c"]
TEXTS += ["", " ", "\0x </s>", "红色的房子 😀"]


def changed(model, change):
    """A tokenizer of the model, after `change(message)`."""
    message = sentencepiece_model_pb2.ModelProto.FromString(model)
    change(message)
    return SentencePieceTokenizer(message.SerializeToString())


def with_tag(message):
    piece = message.pieces[-1]  # one of the characters, which is found first as a whole word
    piece.piece, piece.type = "red", piece.USER_DEFINED


def without_bytes(message):
    message.trainer_spec.byte_fallback = False
    del message.pieces[4:260]


def with_a_piece_of_two_words(message):
    pieces = {piece.piece for piece in message.pieces}
    assert {"▁house", "▁blue"} <= pieces
    message.pieces.add(piece="▁blue▁house", score=-900.0)


@pytest.mark.parametrize(
    "change", [lambda message: None, with_tag, without_bytes, with_a_piece_of_two_words]
)
def test_without_a_dropped_merge_the_ids_are_those_of_sentencepiece(change):
    trained = train_sentencepiece(LINES, 300).model
    tokenizer = changed(trained, change)
    texts = TEXTS + ["red redred xred", "x" * 300, "你你 好 你", "a blue house"]
    assert tokenizer.encode_batch(texts, dropout=1e-18, seed=0) == tokenizer.encode_batch(texts)


@pytest.mark.parametrize("cached_drops", [0, 2])
def test_probabilities_are_those_of_the_paper(cached_drops, monkeypatch):
    """Of two merges, ▁ + a and ▁a + b: each is left out with probability p when it is tried."""

    def two_merges(message):
        for piece, score in (("▁ab", 3.0), ("▁a", 4.0), ("a", 0.0), ("b", 0.0), ("c", 0.0)):
            message.pieces.add(piece=piece, score=score)

    # Short words are split from a cache, long ones are not.
    module = "keras_transformer.data.sentencepiece_tokenizer"
    monkeypatch.setattr(f"{module}._CACHED_DROPS", cached_drops)
    tokenizer = changed(train_sentencepiece(["x y"], 263).model, two_merges)
    rows = tokenizer.encode_batch(["abc"] * 20_000, dropout=0.3, seed=1)
    found = collections.Counter(" ".join(tokenizer.pieces(ids)) for ids in rows)
    expected = {"▁ab c": 0.7 * 0.7, "▁a b c": 0.7 * 0.3, "▁ a b c": 0.3}
    assert found.keys() == expected.keys()
    for split, probability in expected.items():
        assert found[split] / 20_000 == pytest.approx(probability, abs=0.012)  # 3.5 sigma
