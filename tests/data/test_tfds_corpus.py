"""A translation set of tensorflow-datasets, on disk as TFDS writes it, is a corpus both ways."""

import pytest

from keras_transformer.data import TfdsCorpus
from keras_transformer.errors import UserError

ENGLISH = [f"line {number} in English" for number in range(20)]
GERMAN = [f"Zeile {number} auf Deutsch, größer" for number in range(20)]


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """Two prepared sets: the languages are the example, or in a feature of it."""
    import tensorflow as tf
    import tensorflow_datasets as tfds

    folder = tmp_path_factory.mktemp("prepared")
    translation = tfds.features.Translation(languages=("de", "en"))
    pairs = tf.data.Dataset.from_tensor_slices({"de": GERMAN, "en": ENGLISH})
    rows = pairs.enumerate().map(lambda number, pair: {"id": number, "translation": pair})
    nested = tfds.features.FeaturesDict({"id": tf.int64, "translation": translation})
    for name, features, dataset in (
        ("wmt14_translate", translation, pairs),
        ("nested_translation", nested, rows),
    ):
        splits = {"train": dataset, "validation": dataset}
        tfds.dataset_builders.store_as_tfds_dataset(
            name, "1.0.0", features, splits, "de-en", folder, disable_shuffling=True
        )
    return folder


@pytest.mark.parametrize("name, download", [
    ("wmt14_translate/de-en", True), ("nested_translation/de-en", False),
])  # fmt: skip
def test_both_directions_in_a_fixed_order(data_dir, name, download):
    forward = TfdsCorpus(name, "train", "en", "de", data_dir=data_dir, download=download)
    assert len(forward) == 20
    assert list(forward) == list(forward) == list(zip(ENGLISH, GERMAN, strict=True))
    backward = TfdsCorpus(name, "train", "de", "en", data_dir=data_dir, download=download)
    assert list(backward) == list(zip(GERMAN, ENGLISH, strict=True))


@pytest.mark.parametrize("name, split, languages, message", [
    ("wmt14_translate/de-en", "test", ("en", "de"), "no split 'test': it has train, validation"),
    ("wmt14_translate/de-en", "train", ("en", "en"), "must differ"),
    ("wmt14_translate/de-en", "train[:0]", ("en", "de"), "is empty"),
    ("wmt14_translate/de-en", "train", ("en", "fr"), "no pair 'en' - 'fr': .* are de, en"),
    ("wmt14_translate/fr-en", "train", ("en", "fr"), "is not prepared in .* downloads are off"),
    ("no_such_translation", "train", ("en", "de"), "cannot find .*'no_such_translation'"),
])  # fmt: skip
def test_what_cannot_be_had_is_one_clear_line(data_dir, name, split, languages, message):
    with pytest.raises(UserError, match=message) as raised:
        TfdsCorpus(name, split, *languages, data_dir=data_dir, download=False)
    assert "\n" not in str(raised.value)
