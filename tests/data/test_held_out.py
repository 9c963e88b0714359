"""Validation pairs that are held out: few, always the same, and no source of them stays."""

import pytest

from keras_transformer.data import PairsCorpus
from keras_transformer.data.corpora import open_text
from keras_transformer.data.mixed_corpus import HeldOutPairs, hold_out
from keras_transformer.errors import UserError


def pairs_of(number, num_sources):
    return [(f"source {n % num_sources}", f"target {n}") for n in range(number)]


@pytest.mark.parametrize(
    "number, num_sources, held", [(2, 2, 1), (3_000, 1_000, 30), (120_000, 120_000, 1_000)]
)
def test_one_of_a_hundred_is_held_out_and_at_most_a_thousand(number, num_sources, held):
    pairs = pairs_of(number, num_sources)
    train, valid = hold_out(PairsCorpus(pairs))
    assert (len(train), len(valid)) == (number - held, held)
    assert sorted([*train, *valid]) == sorted(pairs)
    assert not {source for source, _ in train} & {source for source, _ in valid}
    # The choice depends on the sources alone.
    others = [(source, target.upper()) for source, target in reversed(pairs)]
    again = {source for source, _ in hold_out(PairsCorpus(others))[1]}
    assert again == {source for source, _ in valid}


def test_a_frequent_source_and_blank_texts_stay_in_training():
    pairs = [("often", str(n)) for n in range(500)] + [("", "a"), ("b", " ")] * 200
    pairs += pairs_of(100, 100)
    train, valid = hold_out(PairsCorpus(pairs))
    assert len(valid) == 10
    assert all(source.startswith("source") for source, _ in valid)
    assert len(list(train)) == len(pairs) - 10


@pytest.mark.parametrize("pairs", [[("a", "b"), ("a", "c")], [("", "b"), ("a", "")]])
def test_nothing_can_be_held_out(pairs):
    with pytest.raises(UserError, match="give validation text. Received: . pairs"):
        hold_out(PairsCorpus(pairs))


def test_the_files_are_parallel(tmp_path):
    HeldOutPairs([("a\u2028b", "ä"), ("c", "d")]).save(tmp_path)
    assert list(open_text(tmp_path / "valid.source")) == ["a\u2028b", "c"]
    assert list(open_text(tmp_path / "valid.target")) == ["ä", "d"]
