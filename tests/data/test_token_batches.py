"""Every pair in exactly one batch of an epoch, as the model wants it, in few shapes, by seed."""

import collections
import itertools
import time

import numpy as np
import pytest

from keras_transformer.data import (
    BOS_ID,
    EOS_ID,
    EncodedCorpus,
    TokenBatches,
)
from keras_transformer.data.mixed_corpus import Mixture
from tests.closeness import assert_close


def make_corpus(num_pairs=700, longest=40, seed=0):
    """Random ids: the corpus, and the same pairs as Python lists (without EOS)."""
    generator = np.random.default_rng(seed)

    def row():
        return generator.integers(4, 1000, generator.integers(1, longest)).tolist()

    pairs = [(row(), row()) for _ in range(num_pairs)]
    return encode(pairs), pairs


def encode(pairs, dtype=np.int32):
    """The corpus of pairs of ids, which have no EOS."""
    arrays = []
    for rows in ([[*source, EOS_ID] for source, _ in pairs], [target for _, target in pairs]):
        arrays += [np.concatenate(rows).astype(dtype), np.cumsum([0, *map(len, rows)])]
    return EncodedCorpus(*arrays)


def read_rows(batch):
    """The pairs of every row of a batch, told apart by nothing but the segments."""
    inputs, labels, weights = batch
    assert set(inputs) == {"source", "target", "source_segments", "target_segments"}
    assert {array.dtype for array in (*inputs.values(), labels)} == {np.dtype(np.int32)}
    assert weights.dtype == np.float32
    is_label = inputs["target_segments"] > 0
    assert_close(weights, is_label / is_label.sum())
    rows = []
    for row in range(len(labels)):
        source_segments = inputs["source_segments"][row]
        target_segments = inputs["target_segments"][row]
        number = source_segments.max()
        pairs = []
        for segment in range(1, number + 1):
            source = inputs["source"][row][source_segments == segment].tolist()
            target = inputs["target"][row][target_segments == segment].tolist()
            label = labels[row][target_segments == segment].tolist()
            assert target == [BOS_ID, *label[:-1]]
            assert source[-1] == label[-1] == EOS_ID
            pairs.append((tuple(source[:-1]), tuple(label[:-1])))
        for segments, ids in ((source_segments, inputs["source"]), (target_segments, labels)):
            # 1, 2, ... one behind the other, then padding only.
            np.testing.assert_array_equal(segments > 0, ids[row] != 0)
            assert not set(np.diff(segments[segments > 0])) - {0, 1}
        rows.append(tuple(pairs))
    return rows


def read_back(batch):
    """The pairs of a batch with one pair in a row."""
    inputs, labels, weights = batch
    assert set(inputs) == {"source", "target"}
    segments = {f"{side}_segments": (ids != 0).astype("int32") for side, ids in inputs.items()}
    return [pair for row in read_rows(({**inputs, **segments}, labels, weights)) for pair in row]


def count(pairs):
    return collections.Counter((tuple(source), tuple(target)) for source, target in pairs)


@pytest.mark.parametrize("num_pairs, tokens_per_batch, shuffle", [
    (700, 1, True), (700, 333, True), (700, 10**6, True), (1, 200, True), (9, 200, True),
    (700, 64, False),
])  # fmt: skip
def test_every_pair_is_once_in_an_epoch_within_the_bound(num_pairs, tokens_per_batch, shuffle):
    encoded, pairs = make_corpus(num_pairs)
    batches = TokenBatches(encoded, tokens_per_batch, shuffle=shuffle)
    for epoch in (0, 3):
        found = []
        for batch in batches.batches(epoch):
            found += read_back(batch)
            for array in (*batch[0].values(), batch[1]):
                assert array.size <= tokens_per_batch or len(array) == 1
        assert count(found) == count(pairs)


def test_the_plan_is_a_function_of_seed_and_epoch():
    encoded, _ = make_corpus()

    def order(seed, epoch, shuffle=True):
        batches = TokenBatches(encoded, 300, seed, shuffle)
        return [read_back(batch) for batch in batches.batches(epoch)]

    assert order(1, 2) == order(1, 2)
    assert order(1, 0, shuffle=False) == order(2, 7, shuffle=False)
    assert len({str(order(*key)) for key in ((1, 2), (1, 3), (2, 2), (2, 1))}) == 4
    assert {len(order(1, epoch)) for epoch in range(5)} == {len(order(2, 0))}


def test_start_and_position_point_to_the_same_batches():
    encoded, _ = make_corpus()
    batches = TokenBatches(encoded, 300, seed=3, packed_width=60)
    number = batches.steps_per_epoch()
    stream = [batch[1] for epoch in range(3) for batch in batches.batches(epoch)]
    assert len(stream) == 3 * number
    for step in (1, 2 * number + 5):
        epoch, start = batches.position(step)
        assert np.array_equal(next(batches.batches(epoch, start))[1], stream[step])
        dataset = batches.dataset(start_step=step).take(3).as_numpy_iterator()
        for offset, (_, labels, _) in enumerate(dataset):
            expected = stream[step + offset] if step + offset < len(stream) else labels
            assert np.array_equal(labels, expected)


def test_dataset_has_the_exact_signature_and_length():
    import tensorflow as tf

    batches = TokenBatches(make_corpus()[0], 300, shuffle=False)
    ids = tf.TensorSpec([None, None], tf.int32)
    weights = tf.TensorSpec([None, None], tf.float32)
    assert batches.dataset().element_spec == ({"source": ids, "target": ids}, ids, weights)
    rest = batches.dataset(start_step=4, repeat=False)
    assert len(list(rest)) == rest.cardinality().numpy() == batches.steps_per_epoch() - 4


def test_deleting_an_iterator_does_not_wait():
    # The thread of autotuning may miss its end, and sleeps for up to a minute then.
    options = TokenBatches(make_corpus()[0], 300).dataset().options()
    assert options.autotune.enabled is False


@pytest.mark.parametrize("kind, packed_width", [
    ("corpus", 47), ("unshuffled", None), ("mixture", None), ("function", 47),
])  # fmt: skip
def test_the_graph_makes_the_very_batches_of_numpy(kind, packed_width):
    encoded, _ = make_corpus()
    if kind == "mixture":
        encoded.mixture = Mixture(("a", "b"), (1, 3), [500, 200])
    corpus = (lambda epoch: encoded) if kind == "function" else encoded
    batches = TokenBatches(corpus, 300, 5, kind != "unshuffled", packed_width=packed_width)
    start, number = 2, batches.steps_per_epoch(3) + batches.steps_per_epoch(4)
    dataset = batches.dataset(start, epoch=3).take(number - start).as_numpy_iterator()
    expected = itertools.chain(batches.batches(3, start), batches.batches(4))
    for (inputs, labels, weights), found in zip(expected, dataset, strict=True):
        assert found[0].keys() == inputs.keys()
        for name, array in inputs.items():
            np.testing.assert_array_equal(found[0][name], array)
            assert found[0][name].dtype == array.dtype == np.int32
        np.testing.assert_array_equal(found[1], labels)
        np.testing.assert_array_equal(found[2], weights)


def test_shares_are_the_rows_of_whole_batches():
    batches = TokenBatches(make_corpus(120)[0], 400, num_replicas=4, packed_width=48)
    whole = batches.batches(0)
    shares = [batches.dataset(repeat=False, share=(i, 2)).as_numpy_iterator() for i in range(2)]
    for (inputs, labels, weights), *parts in zip(whole, *shares, strict=True):
        for name, ids in inputs.items():
            joined = np.concatenate([of_share[name] for of_share, _, _ in parts])
            np.testing.assert_array_equal(joined, ids)
        np.testing.assert_array_equal(np.concatenate([part[1] for part in parts]), labels)
        np.testing.assert_array_equal(np.concatenate([part[2] for part in parts]), weights)
        assert_close(weights.sum(), 1)
    with pytest.raises(ValueError, match="n divides num_replicas"):
        batches.dataset(share=(0, 3))


def test_no_python_runs_while_a_corpus_is_batched():
    """A thread of tf.data that waits for Python can hang the process; see `dataset`."""
    import tensorflow as tf

    def operations(dataset):
        graph = tf.raw_ops.DatasetToGraphV2(input_dataset=tf.data.experimental.to_variant(dataset))
        definition = tf.compat.v1.GraphDef.FromString(graph.numpy())
        nodes = [*definition.node]
        for function in definition.library.function:
            nodes += function.node_def
        return {node.op for node in nodes}

    encoded, _ = make_corpus(50)
    calls_python = {"PyFunc", "EagerPyFunc", "PyFuncStateless", "GeneratorDataset"}
    assert not calls_python & operations(TokenBatches(encoded, 300).dataset())
    # A function in the place of a corpus is Python, once for each epoch.
    assert calls_python & operations(TokenBatches(lambda epoch: encoded, 300).dataset())


def test_an_epoch_can_be_encoded_anew():
    """A function of the epoch in the place of a corpus: shapes stay, content changes."""
    asked = []

    def corpus_of(epoch):
        asked.append(epoch)
        return make_corpus(num_pairs=300, longest=20 + epoch, seed=epoch)

    batches = TokenBatches(lambda epoch: corpus_of(epoch)[0], 300, seed=1)
    for epoch in (0, 1, 5):
        pairs = sum(map(read_back, batches.batches(epoch)), [])
        assert asked.count(epoch) == 1
        assert count(pairs) == count(corpus_of(epoch)[1])
    known = [shape in batches.batch_shapes for shape in batches.shapes(1).elements()]
    assert np.mean(known) > 0.8
    steps = [batches.steps_per_epoch(epoch) for epoch in (0, 1)]
    assert batches.position(sum(steps) + 2) == (2, 2)


def test_rounds_of_an_epoch_do_not_encode_it_again():
    """Several replicas have a new dataset for each round, which makes the next epoch ahead."""
    asked, corpora = [], [make_corpus(num_pairs=300, longest=20, seed=seed)[0] for seed in (0, 1)]

    def corpus_of(epoch):
        asked.append(epoch)
        return corpora[epoch]

    batches = TokenBatches(corpus_of, 300, seed=1, num_replicas=2)
    for number in range(6):
        iterator = iter(batches.dataset(2 * number, epoch=0))
        next(iterator)
        end = time.monotonic() + 60
        while 1 not in asked:
            assert time.monotonic() < end
            time.sleep(0.01)
        batches.finish_encoding()
    assert sorted(asked) == [0, 1]


def test_wrong_arguments_are_named():
    encoded, _ = make_corpus(10)
    wrong = {"tokens_per_batch": 0, "row_multiple": 1.5, "seed": 2**64, "packed_width": 2**31}
    for name, value in wrong.items():
        with pytest.raises(ValueError, match=f"Received: {name}={value}"):
            TokenBatches(encoded, **{"tokens_per_batch": 100, name: value})
    batches = TokenBatches(encoded, 100)
    with pytest.raises(ValueError, match="epoch=-1"):
        next(batches.batches(-1))
    with pytest.raises(ValueError, match="start_step=-2"):
        batches.dataset(start_step=-2)
