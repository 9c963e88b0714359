"""Every epoch has the pairs of its corpora in exact proportions, a function of seed and epoch."""

import collections
import json
import math
import re

import numpy as np
import pytest

from keras_transformer.data import (
    EncodedCorpus,
    MixedCorpus,
    PairsCorpus,
    PreparedCorpus,
    SubwordTokenizer,
    TokenBatches,
    prepare_corpus,
)
from keras_transformer.data.mixed_corpus import Mixture
from keras_transformer.errors import UserError
from tests.data.test_token_batches import read_back, read_rows

LETTERS = SubwordTokenizer(list("abcdefghijkl"))
# Six pairs of a to f, and two of k and l, of different lengths.
CORPORA = {
    "large": PairsCorpus([(f"{x} " * n, x) for n, x in enumerate("abcdef", 1)]),
    "small": PairsCorpus([("k", "k k"), ("l", "l")]),
}
WEIGHTS = {"small": 3, "large": 1}


def mixed(**options):
    return EncodedCorpus.from_corpus(MixedCorpus(CORPORA, WEIGHTS, **options), LETTERS)


def letters(pairs):
    """How often each letter is the first of a target."""
    return collections.Counter(LETTERS.decode([target[0]]) for _, target in pairs)


def epoch_of(batches, number):
    packed = batches.packed_width is not None
    rows = [pair for batch in batches.batches(number) for pair in (
        [pair for row in read_rows(batch) for pair in row] if packed else read_back(batch)
    )]  # fmt: skip
    return letters(rows)


@pytest.mark.tensorflow_only("it is a graph of tf.data")
def test_packed_epochs_share_the_text(monkeypatch):
    import tensorflow as tf

    types, call = [], tf.numpy_function
    monkeypatch.setattr(
        tf, "numpy_function", lambda f, x, dtypes: types.append(dtypes) or call(f, x, dtypes)
    )
    batches = TokenBatches(mixed(), 24, packed_width=12)
    batches.dataset()
    # The pairs of each row and four arrays of the batches.
    assert len(types[0]) == 6


@pytest.mark.parametrize("packed_width", [None, 12])
def test_proportions_are_those_counted_by_hand(packed_width):
    """Weights 1 and 3 of eight pairs: two of six, and each of two three times."""
    options = {"packed_width": packed_width, "row_multiple": 1, "seed": 5}
    batches = TokenBatches(mixed(), 24, **options)
    epochs = [epoch_of(batches, number) for number in range(6)]
    for counts in epochs:
        assert counts["k"] == counts["l"] == 3
        assert sum(counts[x] for x in "abcdef") == 2
    # The sample goes on where it stopped: three epochs are a round through all six.
    for begin in (0, 3):
        total = sum(epochs[begin : begin + 3], collections.Counter())
        assert {total[x] for x in "abcdef"} == {1}
    assert epochs[:3] != epochs[3:], "another round has another order"
    validation = TokenBatches(mixed(), 24, shuffle=False, **options)
    assert set(epoch_of(validation, 1).values()) == {1}, "every pair once"


@pytest.mark.parametrize("trial", range(8))
def test_in_any_stretch_of_epochs_all_pairs_of_a_corpus_are_as_frequent(trial):
    generator = np.random.default_rng(trial)
    sizes = tuple(generator.integers(1, 40, 3).tolist())
    weights = tuple(generator.choice([0.1, 1.0, 2.5, 40.0], 3).tolist())
    mixture = Mixture(("a", "b", "c"), weights, sizes)
    shares = mixture.shares
    for weight, share in zip(weights, shares, strict=True):
        exact = sum(sizes) * weight / sum(weights)
        assert share == max(1, round(exact)) or math.isclose(exact % 1, 0.5)
    begin, end = sorted(generator.integers(0, 30, 2).tolist())
    drawn = np.concatenate([mixture.draw(trial, epoch) for epoch in range(begin, end + 1)])
    counts = np.bincount(drawn, minlength=sum(sizes))
    of_corpora = np.split(counts, np.cumsum(sizes)[:-1])
    for of_corpus, share in zip(of_corpora, shares, strict=True):
        assert of_corpus.sum() == share * (end + 1 - begin)
        # A stretch has parts of at most two rounds besides whole ones.
        assert of_corpus.max() - of_corpus.min() <= 2


def test_pairs_that_are_left_out_have_no_share():
    """A limit of four tokens leaves a, b and c: five pairs, of which 1.25 and 3.75 are asked."""
    for encoded in (
        mixed().up_to(4),
        EncodedCorpus.from_corpus(MixedCorpus(CORPORA, WEIGHTS), LETTERS, max_length=4),
    ):
        assert (encoded.mixture.sizes, encoded.mixture.shares) == ([3, 2], [1, 4])
        assert encoded.rows.tolist() == [0, 1, 2, 6, 7]
    with pytest.raises(UserError, match="No sentence pair is left of the corpus 'large'"):
        pairs = {"large": PairsCorpus([("", "a")]), "small": CORPORA["small"]}
        EncodedCorpus.from_corpus(MixedCorpus(pairs, WEIGHTS), LETTERS)


def test_a_prepared_corpus_is_mixed_as_its_text(tmp_path, monkeypatch):
    monkeypatch.setattr(SubwordTokenizer, "symbols", ("k",))
    tagged = MixedCorpus(CORPORA, WEIGHTS, {"small": "k"})
    prepared = prepare_corpus(tmp_path, tagged, None, LETTERS)
    assert prepared.read().mixture == mixed(tags={"small": "k"}).mixture
    path = tmp_path / "prepared.json"
    content = json.loads(path.read_text())
    right = {"names": ["large", "small"], "weights": [1, 3], "sizes": [6, 2], "tags": ["k"]}
    assert content["splits"]["train"]["mixture"] == right
    content["splits"]["train"]["mixture"] = {**right, "sizes": [6, 1]}
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"prepared.json' is damaged"):
        PreparedCorpus.load(tmp_path)


@pytest.mark.parametrize("weights, tags, message", [
    ({"large": 1}, None, "Every corpus must have a weight"),
    ({"large": 1, "small": 0}, None, "'small' must be a finite number above 0. Received: 0"),
    (WEIGHTS, {"other": "<x>"}, "the corpora ['large', 'small']. Received: tags={'other'"),
    (WEIGHTS, {"small": "<x y>"}, "without white space, such as '>>fra<<'. Received: '<x y>'"),
    (WEIGHTS, {"small": "</s>"}, "must not be one of the reserved pieces"),
])  # fmt: skip
def test_a_wrong_mixture_is_named(weights, tags, message):
    with pytest.raises(UserError, match=re.escape(message)):
        MixedCorpus(CORPORA, weights, tags)
