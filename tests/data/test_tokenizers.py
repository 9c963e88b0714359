"""A saved tokenizer loads as the same one, and a damaged or missing file is one clear line."""

import pickle

import pytest

from keras_transformer.data import (
    MappedTokenizer,
    SubwordTokenizer,
    load_tokenizer,
    save_tokenizer,
    train_sentencepiece,
)
from keras_transformer.errors import UserError

LINES = ["the red house", "the blue house", "a red door and a blue door"]


@pytest.fixture(scope="module", params=["sentencepiece", "mapped", "subwords"])
def tokenizer(request):
    learned = train_sentencepiece(LINES, 285)
    if request.param == "sentencepiece":
        return learned
    if request.param == "mapped":
        return MappedTokenizer(learned.model, learned.pieces(range(4, 285))[::-1])
    # A NUL, a line separator and a letter beyond ASCII inside pieces.
    return SubwordTokenizer(["house", "x\0y\0", "a\u2028b", "ü@@", "red"])


def test_it_is_saved_loaded_and_pickled(tokenizer, tmp_path):
    assert save_tokenizer(tokenizer, tmp_path / "model", name="source").is_file()
    loaded = load_tokenizer(tmp_path / "model", name="source")
    for again in (loaded, pickle.loads(pickle.dumps(tokenizer))):
        assert type(again) is type(tokenizer) and again.vocab_size == tokenizer.vocab_size
        text = "red ü@@ house x\0y\0 a\u2028b"
        assert again.encode(text) == tokenizer.encode(text)


def test_saving_another_kind_replaces_the_old_tokenizer(tokenizer, tmp_path):
    with pytest.raises(UserError, match=r"tokenizer\.model or .*tokenizer\.json: .* has none"):
        load_tokenizer(tmp_path)
    save_tokenizer(train_sentencepiece(LINES, 290), tmp_path)
    save_tokenizer(SubwordTokenizer(["a"]), tmp_path)
    save_tokenizer(tokenizer, tmp_path)
    assert type(load_tokenizer(tmp_path)) is type(tokenizer)
    assert len(list(tmp_path.iterdir())) == 1


def test_a_file_that_is_no_tokenizer_is_never_deleted(tokenizer, tmp_path):
    other = tmp_path / ("tokenizer.txt" if tokenizer.suffix == ".model" else "tokenizer.model")
    other.write_bytes(b"years of work")
    with pytest.raises(UserError, match="is in the way and not a tokenizer") as raised:
        save_tokenizer(tokenizer, tmp_path)
    assert other.name in str(raised.value)
    assert other.read_bytes() == b"years of work"
    assert [path.name for path in tmp_path.iterdir()] == [other.name]


def test_a_subword_file_is_plain_text_in_the_order_of_ids(tmp_path):
    path = save_tokenizer(SubwordTokenizer(["b", "ä@@"]), tmp_path)
    assert path.read_text(encoding="utf-8") == "<pad>\n<unk>\n<s>\n</s>\nb\nä@@\n"
    path.write_bytes(b"<pad>\n<unk>\n<s>\n</s>\n\xff\n")
    with pytest.raises(UserError, match="not valid UTF-8"):
        load_tokenizer(tmp_path)
