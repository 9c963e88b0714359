"""Rows of several pairs: none is lost or cut, segments tell them apart, little is padding."""

import numpy as np
import pytest

from keras_transformer.data import EOS_ID, BatchShape, EncodedCorpus, TokenBatches
from keras_transformer.data.batch_arrays import pack_corpus
from tests.data.test_token_batches import count, encode, read_rows


def make_corpus(source_lengths, target_lengths, dtype=np.int32):
    """A corpus whose pairs have these many tokens, EOS counted, and the pairs as lists of ids.

    No two tokens near each other are equal, so that an id shows where it comes from.
    """
    pairs, number = [], 0
    for lengths in zip(source_lengths, target_lengths, strict=True):
        sides = []
        for length in lengths:
            sides.append([4 + (number + offset) % 60_000 for offset in range(length - 1)])
            number += length - 1
        pairs.append(tuple(sides))
    return encode(pairs, dtype), pairs


def sentences(num_pairs, longest, seed=0):
    """Lengths of two languages: a few tokens up to `longest`, the sides alike."""
    generator = np.random.default_rng(seed)
    source = generator.lognormal(2.65, 0.4, num_pairs)
    target = source * generator.lognormal(0.0, 0.17, num_pairs)
    return [np.clip(side, 2, longest).astype(int).tolist() for side in (source, target)]


@pytest.mark.parametrize(("width", "arguments"), [
    (128, {"shuffle": False}),
    (61, {"num_replicas": 3, "seed": 7}),
    (700, {"row_multiple": 1}),
])  # fmt: skip
def test_every_pair_is_whole_in_one_segment_of_an_epoch(width, arguments):
    encoded, pairs = make_corpus(*sentences(500, longest=60), np.uint16)
    batches = TokenBatches(encoded, 640, packed_width=width, **arguments)
    rows = {128: 5, 61: 9, 700: 1}[width]
    for epoch in (0, 3):
        found = list(batches.batches(epoch))
        for inputs, labels, _ in found:
            assert {array.shape for array in (*inputs.values(), labels)} == {(rows, width)}
        assert batches.shapes(epoch) == {BatchShape(rows, width, width): len(found)}
        assert batches.steps_per_epoch(epoch) == len(found)
        packed = [row for batch in found for row in read_rows(batch)]
        assert count(pair for row in packed for pair in row) == count(pairs)
        # Rows without a pair only complete the last batch.
        assert sum(not row for row in packed) < rows
        share = batches.padding_share(epoch)
        sides = {"source": [b[0]["source"] for b in found], "target": [b[1] for b in found]}
        for side, ids in sides.items():
            assert share[side] == pytest.approx(1 - np.count_nonzero(ids) / np.size(ids))


def test_a_side_with_fewer_tokens_is_narrower():
    encoded, pairs = make_corpus([8] * 40, [3] * 40)
    batches = TokenBatches(encoded, 320, packed_width=32)
    assert batches.shapes() == {BatchShape(8, 32, 12): 2}  # 10 rows of four pairs
    assert batches.padding_share() == {"source": 0.375, "target": 0.375}  # the last six rows
    rows = [row for batch in batches.batches(0) for row in read_rows(batch)]
    assert count(pair for row in rows for pair in row) == count(pairs)


def test_a_corpus_that_cannot_be_packed_is_refused_at_once():
    encoded, _ = make_corpus([4, 30, 9], [5, 7, 31])
    for corpus in (encoded, lambda epoch: encoded):
        TokenBatches(corpus, 640, packed_width=31)
        with pytest.raises(ValueError, match=r"packed_width=30.*Received: 9 .* 31 .* in pair 2"):
            TokenBatches(corpus, 640, packed_width=30)
    for source, target in (([5, 6], [7]), ([5, EOS_ID, EOS_ID], [7]), ([5, EOS_ID], [EOS_ID, 7])):
        arrays = [np.array(ids) for ids in (source, [0, len(source)], target, [0, len(target)])]
        with pytest.raises(ValueError, match="EOS.*Received"):
            TokenBatches(EncodedCorpus(*arrays), 640, packed_width=32)


def test_sentences_like_captions_leave_little_padding():
    """Sorted by length, as some corpora are; on the side that has more tokens."""
    lengths = np.array(sentences(20_000, longest=55))
    encoded, _ = make_corpus(*lengths[:, np.argsort(lengths[0])].tolist())
    batches = TokenBatches(encoded, 4096, packed_width=256)
    assert min(batches.padding_share().values()) < 0.023
    packed = pack_corpus(encoded, (256, 256), seed=0)
    assert np.array_equal(np.sort(packed.pairs), np.arange(20_000))
