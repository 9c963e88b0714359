"""An encoded corpus holds exactly the ids of the tokenizer, EOS on sources, long pairs left out."""

import logging

import numpy as np
import pytest

from keras_transformer.data import (
    EOS_ID,
    EncodedCorpus,
    PairsCorpus,
    SubwordTokenizer,
    train_sentencepiece,
)
from keras_transformer.errors import UserError
from tests.tiny_translator import sentence, tiny_tokenizer

LETTERS = SubwordTokenizer(list("abcdefgh"))


def _rows(ids, offsets):
    return [ids[start:end].tolist() for start, end in zip(offsets, offsets[1:], strict=False)]


def test_rows_are_the_tokenizers_ids_and_sources_end_with_eos():
    encoded = EncodedCorpus.from_corpus(PairsCorpus([("a b", "c"), ("h", "a g")]), LETTERS)
    assert _rows(encoded.source_ids, encoded.source_offsets) == [[4, 5, EOS_ID], [11, EOS_ID]]
    assert _rows(encoded.target_ids, encoded.target_offsets) == [[6], [4, 10]]
    assert encoded.source_lengths.tolist() == [3, 2]
    assert encoded.target_lengths.tolist() == [2, 3]
    assert encoded.source_ids.dtype == encoded.target_ids.dtype == np.uint16


def test_long_and_empty_pairs_are_left_out_counted_and_reported(caplog):
    pairs = [("a a a", "a"), ("b", "c")]  # 4 with EOS: just fits
    pairs += [("a a a a", "a"), ("a", "a a a a"), ("", "a"), ("a", " \t")]
    with caplog.at_level(logging.WARNING):
        encoded = EncodedCorpus.from_corpus(PairsCorpus(pairs), LETTERS, max_length=4)
    assert len(encoded) == 2
    assert (encoded.num_dropped_long, encoded.num_dropped_empty) == (2, 2)
    assert "2 of 6 pairs have an empty side" in caplog.text
    assert "2 of 6 pairs are longer than 4 tokens" in caplog.text
    message = "No sentence pair is left of 2: 1 have an empty side, 1 are"
    with pytest.raises(UserError, match=message):
        EncodedCorpus.from_corpus(PairsCorpus([("a a a", "a"), ("", "")]), LETTERS, max_length=2)


def test_epochs_of_bpe_dropout_repeat_no_warning(caplog):
    tokenizer = train_sentencepiece(["some text here", "and more text"], 285)
    corpus = PairsCorpus([("some text", "and more"), ("", "text")])
    encoded = EncodedCorpus.from_corpus(corpus, tokenizer, dropout=0.1)
    assert encoded.num_dropped_empty == 1 and not caplog.text


def test_text_that_normalizes_to_nothing_counts_as_empty():
    tokenizer = train_sentencepiece(["some text here", "and more text"], 285)
    assert tokenizer.encode("\x01") == []
    encoded = EncodedCorpus.from_corpus([("\x01", "text"), ("text", "text")], tokenizer)
    assert (len(encoded), encoded.num_dropped_empty) == (1, 1)


def test_dropout_is_a_function_of_the_seed():
    texts = [sentence(1 + seed % 12, seed) for seed in range(400)]
    pairs, tokenizer = list(zip(texts, texts, strict=True)), tiny_tokenizer()
    first, again, other = (
        EncodedCorpus.from_corpus(pairs, tokenizer, dropout=0.1, seed=seed) for seed in (1, 1, 2)
    )
    assert np.array_equal(first.source_ids, again.source_ids)
    assert not np.array_equal(first.target_ids, other.target_ids)
    # The sides draw different numbers.
    assert first.target_ids.size != first.source_ids.size - 400


def test_offsets_that_do_not_fit_are_refused():
    ids, offsets = np.zeros(3, np.int32), np.array([0, 2])
    with pytest.raises(ValueError, match="source_offsets must go from 0 to the number of ids, 3"):
        EncodedCorpus(ids, offsets, ids, offsets)
    with pytest.raises(ValueError, match="1 source rows, 2 target rows"):
        EncodedCorpus(ids, np.array([0, 3]), ids, np.array([0, 2, 3]))
