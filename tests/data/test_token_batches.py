"""Every pair in exactly one batch of an epoch, as the model wants it, in few shapes, by seed."""

import collections
import itertools
import threading

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
        for segments, ids in (
            (source_segments, [inputs["source"][row]]),
            (target_segments, [inputs["target"][row], labels[row]]),
        ):
            used = np.count_nonzero(segments)
            # 1, 2, ... one behind the other, then padding only.
            steps = np.diff(segments[:used], prepend=0)
            assert steps.sum() == np.count_nonzero(steps) == number
            assert not segments[used:].any()
            assert not any(array[used:].any() for array in ids)
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
    *itertools.product([700], [1, 30, 333, 4096, 10**6], [True]),
    *itertools.product([1, 2, 7, 9, 50], [200], [True]),
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


@pytest.mark.parametrize("tokens_per_batch", [1, 64, 500])
def test_every_replica_has_as_many_rows_as_the_others(tokens_per_batch):
    encoded, pairs = make_corpus()
    batches = TokenBatches(encoded, tokens_per_batch, num_replicas=3)
    found = list(batches.batches(0))
    assert {len(labels) % 3 for _, labels, _ in found} == {0}
    assert count(sum(map(read_back, found), [])) == count(pairs)


def test_a_pair_longer_than_a_batch_is_a_batch_of_its_own():
    encoded = encode([([5] * 90, [6] * 3), ([7], [8]), ([9] * 2, [10] * 200)])
    batches = TokenBatches(encoded, 64)
    found = [read_back(batch) for batch in batches.batches(0)]
    assert sorted(map(len, found)) == [1, 1, 1]


def test_the_plan_is_a_function_of_seed_and_epoch():
    encoded, _ = make_corpus()

    def order(seed, epoch, shuffle=True):
        batches = TokenBatches(encoded, 300, seed, shuffle)
        return [read_back(batch) for batch in batches.batches(epoch)]

    assert order(1, 2) == order(1, 2)
    assert order(1, 0, shuffle=False) == order(2, 7, shuffle=False)
    assert len({str(order(*key)) for key in ((1, 2), (1, 3), (2, 2), (2, 1))}) == 4
    assert {len(order(1, epoch)) for epoch in range(5)} == {len(order(2, 0))}


def test_pairs_change_company_and_batches_their_order_between_epochs():
    encoded, _ = make_corpus(2000, longest=12)
    batches = TokenBatches(encoded, 400)
    company = [
        {frozenset(map(str, read_back(batch))) for batch in batches.batches(epoch)}
        for epoch in (0, 1)
    ]
    assert len(company[0] & company[1]) < 0.1 * len(company[0])
    widths = [batch[1].shape[1] for batch in batches.batches(0)]
    changes = sum(width != following for width, following in zip(widths, widths[1:], strict=False))
    assert widths != sorted(widths)
    assert changes > 0.5 * len(widths)


@pytest.mark.parametrize("packed_width", [pytest.param(None, marks=pytest.mark.slow), 60])
def test_start_and_position_point_to_the_same_batches(packed_width):
    encoded, _ = make_corpus()
    batches = TokenBatches(encoded, 300, seed=3, packed_width=packed_width)
    number = batches.steps_per_epoch()
    stream = [batch[1] for epoch in range(3) for batch in batches.batches(epoch)]
    assert len(stream) == 3 * number
    for step in (1, number - 1, 2 * number + 5):
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
    assert batches.dataset().cardinality() == tf.data.INFINITE_CARDINALITY
    once = batches.dataset(repeat=False)
    assert once.cardinality() == batches.steps_per_epoch()
    rest = batches.dataset(start_step=4, repeat=False)
    assert len(list(rest)) == rest.cardinality().numpy() == batches.steps_per_epoch() - 4


@pytest.mark.parametrize("kind", ["corpus", "unshuffled", "mixture", "function"])
@pytest.mark.parametrize("packed_width", [None, 47])
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


@pytest.mark.parametrize("packed_width", [None, 48])
def test_shares_are_the_rows_of_whole_batches(packed_width):
    options = {"tokens_per_batch": 400, "num_replicas": 4, "packed_width": packed_width}
    batches = TokenBatches(make_corpus(120)[0], **options)
    whole = batches.batches(0)
    shares = [batches.dataset(repeat=False, share=(i, 4)).as_numpy_iterator() for i in range(4)]
    for (inputs, labels, weights), *parts in zip(whole, *shares, strict=True):
        for name, ids in inputs.items():
            joined = np.concatenate([of_share[name] for of_share, _, _ in parts])
            np.testing.assert_array_equal(joined, ids)
        np.testing.assert_array_equal(np.concatenate([part[1] for part in parts]), labels)
        np.testing.assert_array_equal(np.concatenate([part[2] for part in parts]), weights)
        assert_close(weights.sum(), 1)
    for share in ((4, 4), (-1, 2), (0, 3)):
        with pytest.raises(ValueError, match="n divides num_replicas"):
            batches.dataset(share=share)


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
    for width in (None, 64):
        batches = TokenBatches(encoded, 300, packed_width=width)
        assert not calls_python & operations(batches.dataset())
    # A function in the place of a corpus is Python, once for each epoch.
    assert calls_python & operations(TokenBatches(lambda epoch: encoded, 300).dataset())


def test_finish_encoding_waits_for_the_thread_that_encodes():
    encoded, _ = make_corpus(700)
    entered, may_leave = threading.Event(), threading.Event()

    def encode_epoch(epoch):
        if epoch == 1:
            entered.set()
            assert may_leave.wait(60)
        return encoded

    batches = TokenBatches(encode_epoch, 300)
    encoder = threading.Thread(target=batches.steps_per_epoch, args=[1])
    waiter = threading.Thread(target=batches.finish_encoding)
    encoder.start()
    assert entered.wait(60)
    waiter.start()
    waiter.join(0.2)
    assert waiter.is_alive()
    may_leave.set()
    waiter.join(60)
    assert not waiter.is_alive()
    encoder.join()


def test_an_epoch_can_be_encoded_anew():
    """A function of the epoch in the place of a corpus: shapes stay, content changes."""
    asked = []

    def corpus_of(epoch):
        return make_corpus(num_pairs=300, longest=20 + epoch, seed=epoch)

    def encode_epoch(epoch):
        asked.append(epoch)
        return corpus_of(epoch)[0]

    batches = TokenBatches(encode_epoch, 300, seed=1)
    for epoch in (0, 1, 2, 5):
        pairs = sum(map(read_back, batches.batches(epoch)), [])
        assert count(pairs) == count(corpus_of(epoch)[1])
    assert asked.count(1) == asked.count(5) == 1
    known = [shape in batches.batch_shapes for shape in batches.shapes(1).elements()]
    assert np.mean(known) > 0.8
    stream = [batch[1] for epoch in range(3) for batch in batches.batches(epoch)]
    again = TokenBatches(encode_epoch, 300, seed=1)
    step = again.steps_per_epoch(0) + again.steps_per_epoch(1) + 2
    assert again.position(step) == (2, 2)
    for dataset in (again.dataset(start_step=step), again.dataset(start_step=2, epoch=2)):
        assert np.array_equal(next(dataset.as_numpy_iterator())[1], stream[step])


def test_shapes_can_be_shared_with_another_corpus():
    train, _ = make_corpus(2000, longest=30)
    encoded, pairs = make_corpus(100, longest=60, seed=9)
    shapes = TokenBatches(train, 512).batch_shapes
    batches = TokenBatches(encoded, 512, shuffle=False, batch_shapes=shapes)
    assert count(sum(map(read_back, batches.batches(0)), [])) == count(pairs)


def test_wrong_arguments_are_named():
    encoded, _ = make_corpus(10)
    wrong = {"tokens_per_batch": [0], "row_multiple": [1.5], "num_replicas": [0],
             "max_shapes": [True], "seed": [-1, 2**64], "packed_width": [0, 2**31]}  # fmt: skip
    for name, value in [(name, value) for name, values in wrong.items() for value in values]:
        with pytest.raises(ValueError, match=f"Received: {name}={value}"):
            TokenBatches(encoded, **{"tokens_per_batch": 100, name: value})
    with pytest.raises(ValueError, match="Received: batch_shapes="):
        TokenBatches(encoded, 100, packed_width=64, batch_shapes=[(1, 64, 64)])
    batches = TokenBatches(encoded, 100)
    with pytest.raises(ValueError, match="step=-1"):
        batches.position(-1)
    with pytest.raises(ValueError, match="epoch=-1"):
        next(batches.batches(-1))
    with pytest.raises(ValueError, match="start_step=-2"):
        batches.dataset(start_step=-2)
