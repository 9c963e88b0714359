"""SentencePiece: learned from files, lines or corpora; reserved ids, nothing lost, clear errors."""

import collections
import gzip
import re

import pytest
import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from keras_transformer.data import (
    BOS_ID,
    EOS_ID,
    PAD_ID,
    UNK_ID,
    PairsCorpus,
    SentencePieceTokenizer,
    train_sentencepiece,
)
from keras_transformer.data.vocabularies import sample_lines
from keras_transformer.errors import UserError

LINES = ["the red house", "the blue house", "a red door and a blue door"] * 3


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def tokenizer(request):
    return train_sentencepiece(LINES, {"bpe": 283, "unigram": 274}[request.param], request.param)


def test_nothing_but_the_normalization_is_lost(tokenizer):
    for text in ("the red house", "Zürich 😀 你好 µ", "a\0b", "<s> </s> <unk>", ""):
        ids = tokenizer.encode(text)
        assert all(EOS_ID < token < tokenizer.vocab_size for token in ids)
        assert tokenizer.decode(ids) == text
    assert tokenizer.encode("  the\u3000red  house ") == tokenizer.encode("the red house")


def test_decode_stops_at_eos_and_leaves_out_padding_and_bos(tokenizer):
    ids = tokenizer.encode("the red house")
    rest = tokenizer.encode("door")
    assert tokenizer.decode([BOS_ID, PAD_ID, *ids, EOS_ID, *rest, PAD_ID]) == "the red house"
    assert tokenizer.decode([10**6]) == tokenizer.decode([-1]) == tokenizer.decode([UNK_ID])
    with pytest.raises(ValueError, match="Received: ids of shape"):
        tokenizer.decode([[1, 2]])


def test_lone_surrogates_become_replacement_characters(tokenizer):
    expected = tokenizer.encode("red \ufffd\ufffd\ufffd house")
    assert tokenizer.encode("red \ud800 house") == expected
    with pytest.raises(TypeError, match="Received: text=3"):
        tokenizer.encode(3)


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
    cuts.append(sentencepiece_model_pb2.ModelProto(pieces=message.pieces[:100]).ByteSize())
    for broken in (b"no model", *(tokenizer.model[:cut] for cut in cuts)):
        with pytest.raises(UserError, match="SentencePiece model"):
            SentencePieceTokenizer(broken)


def test_models_with_other_reserved_ids_are_refused(tmp_path):
    options = {"model_prefix": str(tmp_path / "other"), "vocab_size": 18, "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(LINES), **options)
    with pytest.raises(UserError, match="pad_id=-1, unk_id=0, bos_id=1, eos_id=2"):
        SentencePieceTokenizer((tmp_path / "other.model").read_bytes())


WORDS = [f"{word} {other}" for word in ("red", "blue", "big") for other in ("house", "door", "car")]


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
def test_size_and_every_character_and_byte_are_as_asked(model_type):
    tokenizer = train_sentencepiece([*WORDS, "ñ 好"], 276, model_type)
    assert tokenizer.vocab_size == 276
    assert tokenizer.model_type == model_type
    pieces = tokenizer.pieces(range(276))
    assert pieces[:5] == ["<pad>", "<unk>", "<s>", "</s>", "<0x00>"]
    assert {"ñ", "好"} <= set(pieces)
    assert sum(bool(re.fullmatch("<0x[0-9A-F]{2}>", piece)) for piece in pieces) == 256


def test_files_lines_and_corpora_give_the_same_vocabulary(tmp_path):
    plain, packed = tmp_path / "a.txt", tmp_path / "b.txt.gz"
    plain.write_text("\n".join(WORDS[:4]) + "\n")
    packed.write_bytes(gzip.compress(("\n".join(WORDS[4:]) + "\n").encode()))
    expected = train_sentencepiece(WORDS, 285).model
    assert train_sentencepiece(iter(WORDS), 285).model == expected
    assert train_sentencepiece([plain, packed], 285).model == expected
    corpus = PairsCorpus(list(zip(WORDS[::2], WORDS[1::2], strict=False)))
    assert train_sentencepiece(corpus, 285).model == train_sentencepiece(WORDS[:8], 285).model


def test_lines_that_sentencepiece_skips_are_counted(caplog):
    """It counts bytes: 5,462 characters of three bytes are too long."""
    fits, too_long = "好" * 5_461, "坏" * 5_462
    tokenizer = train_sentencepiece([*WORDS, fits, too_long, "\ud800" + too_long], 300)
    assert "2 lines of more than 16384 bytes are left out of the text for the vocab" in caplog.text
    assert {*"好坏"} & {*"".join(tokenizer.pieces(range(300)))} == {"好"}


def test_a_size_that_the_text_cannot_fill_is_answered_with_the_largest_possible(caplog):
    caplog.set_level("INFO")
    with pytest.raises(UserError, match="at most") as raised:
        train_sentencepiece(WORDS, 5000)
    largest = int(re.search(r"at most (\d+) pieces", str(raised.value))[1])
    assert train_sentencepiece(WORDS, largest).vocab_size == largest
    tokenizer = train_sentencepiece(WORDS, 5000, allow_fewer=True)
    assert f"too small for a vocabulary of 5,000: it has {tokenizer.vocab_size}" in caplog.text


@pytest.mark.parametrize("text, size, model_type, error, message", [
    ([], 300, "bpe", UserError, "is empty"),
    (WORDS, 300, "wordpiece", ValueError, "model_type='wordpiece'"),
    (WORDS, 0, "bpe", ValueError, "vocab_size=0"),
    ([3], 300, "bpe", TypeError, "Received: item=3"),
])  # fmt: skip
def test_empty_text_and_wrong_arguments_are_errors(text, size, model_type, error, message):
    with pytest.raises(error, match=message):
        train_sentencepiece(text, size, model_type)


def test_sampling_is_seeded_and_takes_every_line_with_the_same_chance():
    lines = [str(number) for number in range(100)]
    assert sample_lines(lines, 100, 0) == lines
    counts = collections.Counter()
    for seed in range(2000):
        counts.update(sample_lines(lines, 30, seed))
    # Binomial(2000, 0.3): mean 600, standard deviation 20.5.
    assert 500 < min(counts.values()) and max(counts.values()) < 700
