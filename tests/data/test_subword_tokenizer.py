"""Text in subwords: ids by frequency, `@@ ` joins, unknown pieces, a plain vocabulary file."""

import pytest

from keras_transformer.data import (
    BOS_ID,
    EOS_ID,
    PAD_ID,
    UNK_ID,
    SubwordTokenizer,
    build_subword_vocabulary,
)
from keras_transformer.errors import UserError


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
    assert tokenizer.decode(tokenizer.encode("x@@y system")) == "x@@y system"
    ids = tokenizer.encode("system")
    assert tokenizer.decode([BOS_ID, *ids, PAD_ID, EOS_ID, *ids]) == "system"
    assert tokenizer.decode([UNK_ID, *ids, 99, -3]) == "<unk> system <unk> <unk>"
    assert tokenizer.decode_batch([ids, []]) == ["system", ""]


def test_text_cannot_spell_the_reserved_ids():
    tokenizer = build_subword_vocabulary(["a <s> </s> <pad> <unk> a"])
    assert tokenizer.vocab_size == 5
    assert tokenizer.encode("a </s> <pad> <s>") == [4, UNK_ID, UNK_ID, UNK_ID]


def test_only_ascii_whitespace_separates():
    tokenizer = build_subword_vocabulary(["no\u00a0break\u2028x a\tb"])
    assert tokenizer.vocab_size == 4 + 3
    assert tokenizer.encode(" no\u00a0break\u2028x \v a\r\n") == [6, 4]
    assert tokenizer.encode("") == []


@pytest.mark.parametrize("pieces, message", [
    (["a b"], "Received: piece='a b'"),
    ([""], "Received: piece=''"),
    (["a", "b", "a"], "Received: 'a' twice"),
    (["</s>"], "'</s>' twice"),
])  # fmt: skip
def test_wrong_pieces_are_user_errors(pieces, message):
    with pytest.raises(UserError, match=message):
        SubwordTokenizer(pieces)


def test_what_a_vocabulary_cannot_be_built_of_is_named():
    with pytest.raises(UserError, match="is empty"):
        build_subword_vocabulary(["", " "])
    with pytest.raises(ValueError, match="max_size=4"):
        build_subword_vocabulary(["a"], max_size=4)
