"""Where `train` and `prepare` find what they read: files, a dataset, or a prepared corpus."""

import os
from collections.abc import Mapping
from typing import Any

from keras_transformer.cli.train_settings import SETTINGS
from keras_transformer.errors import UserError
from keras_transformer.parsing.cli.settings import linearization_fields

# What each kind of data needs.
DATA_KINDS = {
    "trees": ("trees", "valid_trees"),
    "source": ("source", "target", "valid_source", "valid_target"),
    "tsv": ("tsv", "valid_tsv"),
    "dataset": ("dataset", "source_language", "target_language"),
    "prepared": ("prepared",),
}


def data_kind(values: Mapping[str, Any]) -> str:
    """Finds where the sentence pairs come from.

    Args:
        values: settings by name.

    Returns:
        `"source"` (two text files), `"tsv"`, `"dataset"`, `"prepared"` or `"trees"`.

    Raises:
        UserError: if they come from nowhere or from two places, or a part is missing.
    """
    kinds = [kind for kind, names in DATA_KINDS.items() if any(values[name] for name in names)]
    if values["task"] == "parsing" and not kinds:
        raise UserError("--task parsing needs --trees FILE and --valid-trees FILE.")
    if len(kinds) != 1:
        raise UserError(
            "Sentence pairs come from --source and --target, from --tsv, or from --dataset; in "
            "`train` also from --prepared. "
            f"Received: {' and '.join('--' + kind for kind in kinds) or 'none of them'}"
        )
    (kind,) = kinds
    missing = [SETTINGS[name].flag for name in DATA_KINDS[kind] if not values[name]]
    if missing:
        raise UserError(f"--{kind} also needs {' and '.join(missing)}.")
    return kind


def file_corpora(kind: str, values: Mapping[str, Any]) -> tuple:
    """Opens the files and reads them once, to find what is wrong with them.

    Args:
        kind: `"source"`, `"tsv"` or `"trees"`.
        values: settings by name.

    Returns:
        The training and the validation corpus.
    """
    from keras_transformer.data import ParallelTextCorpus, TsvCorpus
    from keras_transformer.parsing.linearization import Linearization
    from keras_transformer.parsing.treebank_corpus import TreebankCorpus

    if kind == "trees":
        linearization = Linearization(**linearization_fields(values))
        corpora = (
            TreebankCorpus(values["trees"], linearization, limit=values["limit_trees"]),
            TreebankCorpus(values["valid_trees"], linearization),
        )
    elif kind == "tsv":
        corpora = TsvCorpus(values["tsv"]), TsvCorpus(values["valid_tsv"])
    else:
        corpora = (
            ParallelTextCorpus(values["source"], values["target"]),
            ParallelTextCorpus(values["valid_source"], values["valid_target"]),
        )
    for corpus in corpora:
        len(corpus)  # reads it once: finds lines that are no UTF-8, and files that do not match
    return corpora


def known_pairs(values: Mapping[str, Any]):
    """Opens the training pairs, for their number, if they are in files that are there.

    Args:
        values: settings by name.

    Returns:
        The training corpus, or None.
    """
    from keras_transformer.data import ParallelTextCorpus, PreparedCorpus, TsvCorpus

    if values["prepared"] and os.path.isdir(values["prepared"]):
        return PreparedCorpus.load(values["prepared"]).read("train")
    files = [values[name] for name in ("tsv", "source", "target") if values[name]]
    if not files or not all(map(os.path.isfile, files)):
        return None
    if values["tsv"]:
        return TsvCorpus(values["tsv"])
    return ParallelTextCorpus(*files) if len(files) == 2 else None


def dataset_corpora(values: Mapping[str, Any]) -> tuple:
    """Opens the dataset, which is downloaded if need be.

    Args:
        values: settings by name.

    Returns:
        The training and the validation corpus.
    """
    from keras_transformer.data import TfdsCorpus

    return tuple(
        TfdsCorpus(
            values["dataset"],
            values[split],
            values["source_language"],
            values["target_language"],
            data_dir=values["data_dir"],
        )
        for split in ("train_split", "valid_split")
    )


def load_prepared(values: dict[str, Any]):
    """Opens the prepared corpus, whose vocabularies and longest sentence become settings.

    Args:
        values: settings by name; some are set.

    Returns:
        `PreparedCorpus`.

    Raises:
        UserError: if settings say something else than the corpus.
    """
    for name in ("vocabulary", "vocab_size", "bpe_dropout"):
        if values[name]:
            raise UserError(
                "--prepared brings a vocabulary and its ids. Received: --prepared and "
                f"{SETTINGS[name].flag}"
            )
    from keras_transformer.data import PreparedCorpus

    prepared = PreparedCorpus.load(values["prepared"])
    values["shared_vocabulary"] = prepared.target_tokenizer is None
    values["max_length"] = values["max_length"] or prepared.max_length
    if values["max_length"] > prepared.max_length:
        raise UserError(
            f"{values['prepared']!r} has no sentence of more than {prepared.max_length} subwords. "
            f"Received: --max-length {values['max_length']}"
        )
    return prepared
