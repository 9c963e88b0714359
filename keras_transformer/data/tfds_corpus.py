"""Translation data sets of tensorflow-datasets as a corpus."""

import os
from collections.abc import Iterator

from keras_transformer.errors import UserError


class TfdsCorpus:
    """A translation set of tensorflow-datasets, in either direction.

    Works with sets whose examples hold the text of each language under its code, directly or in
    a `translation` feature: `wmt14_translate/de-en` has `{"de": ..., "en": ...}` for both
    directions.

    Args:
        name: `"set"`, `"set/config"` or `"set/config:version"`.
        split: TFDS split or expression, e.g. `"train"` or `"train[:1%]+validation"`.
        source_language, target_language: the features with both texts, such as `"en"` and `"de"`.
        data_dir: folder of prepared sets; `None`: the default of TFDS (`~/tensorflow_datasets`).
        download: whether to download and prepare the set if it is not in `data_dir`.

    Raises:
        UserError: if the set is not available, the split or a language is unknown, or both
            languages are the same.

    Example:

    >>> corpus = keras_transformer.data.TfdsCorpus(  # doctest: +SKIP
    ...     "wmt14_translate/de-en", "validation", source_language="en", target_language="de"
    ... )
    >>> source, target = next(iter(corpus))  # doctest: +SKIP
    """

    def __init__(
        self,
        name: str,
        split: str,
        source_language: str,
        target_language: str,
        data_dir: str | os.PathLike | None = None,
        download: bool = True,
    ):
        self.name = name
        self.split = split
        self.source_language = source_language
        self.target_language = target_language
        if source_language == target_language:
            rule = "source_language and target_language must differ"
            raise UserError(f"{rule}. Received: {source_language=}, {target_language=}")
        self._builder = _prepared_builder(name, data_dir, download)
        self._path = _path_to_languages(self._builder, name, (source_language, target_language))
        splits = self._builder.info.splits
        try:
            self._num_pairs = splits[split].num_examples
        except Exception as error:  # several types, by what is wrong with the expression
            raise UserError(
                f"{name!r} has no split {split!r}: it has {', '.join(sorted(splits))}."
            ) from error
        if not self._num_pairs:
            raise UserError(f"The split {split!r} of {name!r} is empty.")

    def __len__(self) -> int:
        return self._num_pairs

    def __iter__(self) -> Iterator[tuple[str, str]]:
        import tensorflow_datasets as tfds

        dataset = self._builder.as_dataset(
            split=self.split,
            shuffle_files=False,
            # One reader, because the order of the pairs is fixed.
            read_config=tfds.ReadConfig(interleave_cycle_length=1),
        )
        for number, example in enumerate(tfds.as_numpy(dataset)):
            for key in self._path:
                example = example[key]
            try:
                source = example[self.source_language].decode("utf-8")
                target = example[self.target_language].decode("utf-8")
            except UnicodeDecodeError as error:
                raise UserError(
                    f"Example {number} of {self.name!r}, split {self.split!r}, is not valid UTF-8."
                ) from error
            # A line end inside a text would break every line-based file written from it.
            yield source.replace("\n", " "), target.replace("\n", " ")


def _prepared_builder(name, data_dir, download):
    import tensorflow_datasets as tfds

    problem = f"tensorflow-datasets cannot find the data set {name!r}"
    try:
        builder = tfds.builder(name, data_dir=None if data_dir is None else os.fspath(data_dir))
        if download:
            problem = f"The data set {name!r} could not be downloaded"
            builder.download_and_prepare()
    except Exception as error:  # several types: the name, network, disk, checksums
        first_line = next((line.strip() for line in str(error).splitlines() if line.strip()), None)
        reason = ": ".join(filter(None, (type(error).__name__, first_line)))
        raise UserError(f"{problem}: {reason}") from error
    if not download and not builder.info.splits:
        raise UserError(
            f"The data set {name!r} is not prepared in {str(builder.data_dir)!r}, "
            "and downloads are off."
        )
    return builder


def _path_to_languages(builder, name, languages) -> tuple[str, ...]:
    """Returns the path to the languages in an example: `()`, or the key of their feature."""
    features = builder.info.features
    candidates = {(): features}
    candidates |= {(key,): feature for key, feature in features.items() if hasattr(feature, "keys")}
    for path, feature in candidates.items():
        if all(language in feature for language in languages):
            return path
    available = sorted({key for feature in candidates.values() for key in feature})
    raise UserError(
        f"{name!r} has no pair {languages[0]!r} - {languages[1]!r}: "
        f"its features are {', '.join(available)}."
    )
