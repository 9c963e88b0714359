"""SentencePiece in Python: reserved ids, nothing lost, sampling by seed, clear errors."""

import pickle

import numpy as np
import pytest
import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from keras_transformer.data import (
    BOS_ID,
    EOS_ID,
    PAD_ID,
    UNK_ID,
    SentencePieceTokenizer,
    train_sentencepiece,
)
from keras_transformer.errors import UserError

LINES = ["the red house", "the blue house", "a red door and a blue door"] * 3


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def tokenizer(request):
    return train_sentencepiece(LINES, {"bpe": 283, "unigram": 274}[request.param], request.param)


def test_nothing_but_the_normalization_is_lost(tokenizer):
    for text in ("the red house", "Zürich 😀 你好 µ", "a\0b", "<s> </s> <unk>", ""):
        ids = tokenizer.encode(text)
        assert all(EOS_ID < token < tokenizer.vocab_size for token in ids)
        assert tokenizer.decode(ids) == text.replace("µ", "μ")  # NFKC
    assert tokenizer.encode("  the\u3000red  house ") == tokenizer.encode("the red house")


def test_decode_stops_at_eos_and_leaves_out_padding_and_bos(tokenizer):
    ids = tokenizer.encode("the red house")
    rest = tokenizer.encode("door")
    assert tokenizer.decode([BOS_ID, PAD_ID, *ids, EOS_ID, *rest, PAD_ID]) == "the red house"
    assert tokenizer.decode(np.array([EOS_ID, *ids])) == ""
    assert tokenizer.decode_batch(np.array([ids, ids])) == ["the red house"] * 2
    assert "⁇" in tokenizer.decode([UNK_ID])
    assert tokenizer.decode([10**6]) == tokenizer.decode([-1]) == tokenizer.decode([UNK_ID])
    with pytest.raises(ValueError, match="Received: ids of shape"):
        tokenizer.decode([[1, 2]])


def test_lone_surrogates_become_replacement_characters(tokenizer):
    expected = tokenizer.encode("red \ufffd\ufffd\ufffd house")
    assert tokenizer.encode("red \ud800 house") == expected
    with pytest.raises(TypeError, match="Received: text=3"):
        tokenizer.encode(3)


def test_pieces_and_pickling(tokenizer):
    ids = tokenizer.encode("the house")
    assert "".join(tokenizer.pieces(ids)).replace("▁", " ").strip() == "the house"
    assert pickle.loads(pickle.dumps(tokenizer)).encode("the house") == ids


def test_dropout_needs_a_probability_a_seed_and_a_bpe_model(tokenizer):
    with pytest.raises(ValueError, match=r"\[0, 1\).*dropout=1.5"):
        tokenizer.encode_batch(["a"], dropout=1.5, seed=0)
    message = "Received: seed=None" if tokenizer.model_type == "bpe" else "of type 'unigram'"
    with pytest.raises(ValueError, match=message):
        tokenizer.encode_batch(["a"], dropout=0.1)


def test_every_truncation_of_a_model_is_noticed(tokenizer):
    """Also one between two pieces, which leaves a valid message with fewer of them."""
    message = sentencepiece_model_pb2.ModelProto.FromString(tokenizer.model)
    cuts = [*range(0, len(tokenizer.model), 997), len(tokenizer.model) - 3]
    for number in (1, 4, 100, len(message.pieces)):
        first = sentencepiece_model_pb2.ModelProto(pieces=message.pieces[:number])
        assert tokenizer.model.startswith(first.SerializeToString())
        cuts.append(len(first.SerializeToString()))
    for broken in (b"no model", *(tokenizer.model[:cut] for cut in cuts)):
        with pytest.raises(UserError, match="SentencePiece model"):
            SentencePieceTokenizer(broken)


def test_models_with_other_reserved_ids_are_refused(tmp_path):
    options = {"model_prefix": str(tmp_path / "other"), "vocab_size": 18, "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(LINES), **options)
    with pytest.raises(UserError, match="pad_id=-1, unk_id=0, bos_id=1, eos_id=2"):
        SentencePieceTokenizer((tmp_path / "other.model").read_bytes())
