"""The data of translation on the command line: its options and corpora, and what looks wrong."""

import itertools
import logging
import os
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from keras_transformer.cli.backend import load_backend
from keras_transformer.cli.task_commands import Corpora
from keras_transformer.errors import UserError
from keras_transformer.files import current_file
from keras_transformer.layouts import SEPARATE_TOKENIZERS
from keras_transformer.settings.base import (
    File,
    Folder,
    Metavar,
    Settings,
    Texts,
    settings_dataclass,
)
from keras_transformer.settings.training_settings import TrainingSettings

_LOGGER = logging.getLogger(__name__)
_FEW_VALID_PAIRS = 100
_ENTRY = re.compile(r"([^=:,]+)=(-?[\d.]+(?:e-?\d+)?):([^,]+),([^,]+)(?:,([^,]+))?")
Code = Annotated[str, Metavar("CODE")]
# A choice: 29,000 image captions are enough for captions, see docs/results.md.
FEW_PAIRS = 10_000
_SHARE_OF_COPIES = 0.01
_SAMPLE = 100_000  # pairs whose words are collected
_WORD = re.compile(r"\w+")


@settings_dataclass
class TranslationData(Settings):
    """The options of `train` and `prepare` for sentence pairs.

    Args:
        source: Training text in the source language, .gz too.
        target: Its translation, line by line.
        valid_source: Source text to choose and watch the model by; never the test set; None for 1 %
            of the training pairs, which are held out and kept in the output folder.
        valid_target: Its translation.
        tsv: Training pairs, one a line, in columns with tabs between them.
        valid_tsv: Validation pairs in the same columns.
        columns: The columns of source and target: numbers from 1, such as 2,1, or names in the
            first line, such as en,de; None for 1,2.
        dataset: A translation set of tensorflow-datasets, such as wmt14_translate/de-en.
        source_language: Language to translate from, such as en; needed with --dataset.
        target_language: Language to translate into, such as de; chooses BLEU's tokenizer, and is
            needed with --dataset.
        train_split: Split of the dataset to train on.
        valid_split: Split of the dataset to validate on.
        prepared: Encoded pairs of `keras-transformer prepare`, validation pairs included.
        data_dir: Folder of tensorflow-datasets for its files.
        corpus: Training text that is mixed with that of other --corpus options, in proportion to
            their weights; TAG, such as '>>fra<<' or '<bt>', is put in front of its sources; may be
            given several times.
        also_valid: A second validation set, scored like the first, such as one of the text that the
            model to start from learned; it chooses nothing; may be given several times.
    """

    source: File | None = None
    target: File | None = None
    valid_source: File | None = None
    valid_target: File | None = None
    tsv: File | None = None
    valid_tsv: File | None = None
    columns: Annotated[str, Metavar("SOURCE,TARGET")] | None = None
    dataset: str | None = None
    source_language: Code | None = None
    target_language: Code | None = None
    train_split: str = "train"
    valid_split: str = "validation"
    prepared: Folder | None = None
    data_dir: Folder | None = None
    corpus: Annotated[Texts, Metavar("NAME=WEIGHT:SOURCE,TARGET[,TAG]")] | None = None
    also_valid: Annotated[Texts, Metavar("NAME=SOURCE,TARGET")] | None = None


def open_corpora(kind: str, values: dict[str, Any]) -> Corpora:
    """Opens the corpora of a kind; see `TaskCommands.open_corpora`."""
    also_valid = _open_also_valid(values["also_valid"] or ())
    if values["bleu_every"] and (values["bleu_tokenize"] or values["target_language"]):
        from keras_transformer.evaluation.bleu import bleu_tokenizer, make_bleu

        # Raises if a package is missing.
        make_bleu(values["bleu_tokenize"] or bleu_tokenizer(values["target_language"]))
    if kind == "prepared":
        return _open_prepared(values)._replace(also_valid=also_valid)
    if kind == "dataset":
        load_backend()  # tensorflow-datasets imports TensorFlow
        from keras_transformer.data import TfdsCorpus

        languages = (values["source_language"], values["target_language"])
        splits = (values["train_split"], values["valid_split"])
        name, folder = values["dataset"], values["data_dir"]
        corpora = [TfdsCorpus(name, n, *languages, data_dir=folder) for n in splits]
    else:
        corpora = _open_texts(values)
    train_corpus, valid_corpus = corpora
    # A dataset is slow to read: its first pairs are enough.
    read = list(itertools.islice(train_corpus, _SAMPLE)) if kind == "dataset" else train_corpus
    for warning in text_warnings(read, valid_corpus, bool(values.get("start_from"))):
        _LOGGER.warning(warning)
    source_tokenizer, target_tokenizer = _tokenizers_in_languages(values)
    return Corpora(train_corpus, valid_corpus, source_tokenizer, target_tokenizer, also_valid)


def _tokenizers_in_languages(values):
    """Returns the tokenizers of a model of several languages in those to adapt it to, or none."""
    languages = values["source_language"], values["target_language"]
    folder = values["start_from"]
    if not folder or values["vocabulary"] or not any(languages):
        return None, None
    from keras_transformer.data.tokenizer_pair import TokenizerPair

    is_shared = not current_file(folder, f"{SEPARATE_TOKENIZERS[0]}.json").is_file()
    if is_shared or not (pair := TokenizerPair.load(folder, is_shared)).of_target.language:
        return None, None
    known = zip((pair.source, pair.of_target), languages, strict=True)
    return tuple(tokenizer.with_language(code or tokenizer.language) for tokenizer, code in known)


def open_known_corpus(values: Mapping[str, Any]) -> Any:
    """Returns the training corpus if its files are there; otherwise None."""
    from keras_transformer.data.mixed_corpus import hold_out

    if values["prepared"] and os.path.isdir(values["prepared"]):
        from keras_transformer.data import PreparedCorpus

        return PreparedCorpus.load(values["prepared"]).read("train")
    files = [values[name] for name in ("tsv", "source", "target") if values[name]]
    files += [file for entry in _mixture_entries(values) for file in entry[2:4]]
    is_named = values["tsv"] or len(files) > 1
    if not is_named or not all(map(os.path.isfile, files)):
        return None
    if values["valid_source"] or values["valid_tsv"]:
        return _open_text(values)
    return hold_out(_open_text(values))[0]  # as `train` does


def _mixture_entries(values) -> list[tuple[str, ...]]:
    """Returns name, weight, source, target and tag (or None) of each value of `--corpus`."""
    matches = [_ENTRY.fullmatch(text) for text in values["corpus"] or ()]
    if None in matches:
        rule = "--corpus is NAME=WEIGHT:SOURCE,TARGET[,TAG], with a number above 0 for WEIGHT"
        raise UserError(f"{rule}. Received: {values['corpus'][matches.index(None)]!r}")
    return [match.groups() for match in matches if match]


def _open_mixture(values):
    from keras_transformer.data import MixedCorpus, ParallelTextCorpus

    corpora: dict[str, Any] = {}
    weights: dict[str, Any] = {}
    tags = {name: tag for name, *_, tag in _mixture_entries(values) if tag}
    for name, weight, source, target, _ in _mixture_entries(values):
        if name in corpora:
            raise UserError(f"The names of --corpus must differ. Received: {name!r} twice")
        corpora[name] = ParallelTextCorpus(source, target)
        weights[name] = float(weight)
    return MixedCorpus(corpora, weights, tags)


def _open_text(values, part=""):
    from keras_transformer.data import ParallelTextCorpus, TsvCorpus

    if not part and values["corpus"]:
        return _open_mixture(values)
    if values[f"{part}tsv"]:
        return TsvCorpus(values[f"{part}tsv"], *_columns(values["columns"] or "1,2"))
    return ParallelTextCorpus(values[f"{part}source"], values[f"{part}target"])


def _columns(text):
    """Returns the columns of `--columns`: indices from 0, or names."""
    columns = [int(c) - 1 if c.isdecimal() else c for c in map(str.strip, text.split(","))]
    if len(columns) != 2 or columns[0] == columns[1] or not {-1, ""}.isdisjoint(columns):
        rule = "--columns is SOURCE,TARGET, two numbers from 1 or two names"
        raise UserError(f"{rule}. Received: {text!r}")
    return columns


def _open_texts(values):
    """Returns the corpora for training and validation, whose lines have been read and checked."""
    from keras_transformer.data.mixed_corpus import hold_out

    corpus = _open_text(values)
    num_pairs = len(corpus)  # reads all lines, and raises if one is not UTF-8 or has no partner
    if values["valid_source"] or values["valid_tsv"]:
        valid_corpus = _open_text(values, "valid_")
        len(valid_corpus)
    else:
        corpus, valid_corpus = hold_out(corpus)
        share = f"{len(valid_corpus):,} of {num_pairs:,} pairs"
        _LOGGER.info("No validation text is given: %s are held out and kept in the output.", share)
        if len(valid_corpus) < _FEW_VALID_PAIRS:
            _LOGGER.warning("Scores of %d pairs are mostly chance.", len(valid_corpus))
    return [corpus, valid_corpus]


def _open_also_valid(texts):
    """Returns the corpora of the values of `--also-valid` by name."""
    from keras_transformer.data import ParallelTextCorpus

    corpora: dict[str, Any] = {}
    for text in texts:
        name, _, files = text.partition("=")
        source, _, target = files.partition(",")
        if not (name and source and target):
            raise UserError(f"--also-valid is NAME=SOURCE,TARGET. Received: {text!r}")
        if name in ("train", "valid", *corpora):
            rule = "Each --also-valid needs a name of its own, other than train and valid"
            raise UserError(f"{rule}. Received: {text!r}")
        corpora[name] = ParallelTextCorpus(source, target)
        len(corpora[name])  # reads all lines
    return corpora


def _open_prepared(values):
    """Opens a prepared corpus, and sets `shared_vocabulary` and `max_length` from it."""
    from keras_transformer.data import PreparedCorpus

    for name in ("vocabulary", "vocab_size", "bpe_dropout"):
        if values[name]:
            rule = "--prepared brings a vocabulary and its ids"
            raise UserError(f"{rule}. Received: --prepared and --{name.replace('_', '-')}")
    if values["vocabulary_type"] != TrainingSettings.tokenizer:
        rule = "--prepared brings a vocabulary of the type that `prepare` was given"
        raise UserError(f"{rule}. Received: --vocabulary-type {values['vocabulary_type']}")
    prepared = PreparedCorpus.load(values["prepared"])
    if not values["shared_vocabulary"] and prepared.target_tokenizer is None:
        rule = "--prepared has one vocabulary for both languages; `prepare` can make two"
        raise UserError(f"{rule}. Received: --no-shared-vocabulary")
    values["shared_vocabulary"] = prepared.target_tokenizer is None
    values["max_length"] = values["max_length"] or prepared.max_length
    if values["max_length"] > prepared.max_length:
        rule = f"{values['prepared']!r} has no sentence of more than {prepared.max_length} subwords"
        raise UserError(f"{rule}. Received: --max-length {values['max_length']}")
    tokenizers = prepared.source_tokenizer, prepared.target_tokenizer
    for tokenizer, name in zip(tokenizers, ("source_language", "target_language"), strict=True):
        language = tokenizer.language if tokenizer else ""
        if language and values[name] and tokenizer.with_language(values[name]).language != language:
            rule = f"The prepared corpus is encoded in {language!r}"
            raise UserError(f"{rule}. Received: --{name.replace('_', '-')} {values[name]}")
    return Corpora(prepared.read("train"), prepared.valid_text, *tokenizers)


def text_warnings(train_corpus: Any, valid_corpus: Any, adapts: bool) -> Iterator[str]:
    """Yields warnings with figures; to adapt a model (`adapts`), few pairs are enough."""
    valid = list(valid_corpus)
    valid_sources, leaked = {source.strip() for source, _ in valid}, set()
    words: tuple[set, set] = set(), set()
    empty: list[int] = []
    num_pairs = num_copies = 0
    for num_pairs, (source, target) in enumerate(train_corpus, start=1):
        if len(empty) < 3 and not (source.strip() and target.strip()):
            empty.append(num_pairs)
        num_copies += source == target != ""
        if source.strip() in valid_sources:
            leaked.add(source.strip())
        if num_pairs <= _SAMPLE:
            words[0].update(_words(source))
            words[1].update(_words(target))
    if num_pairs < FEW_PAIRS and not adapts:
        few = f"{num_pairs:,} training pairs are few (below {FEW_PAIRS:,}): expect poor answers to"
        yield f"{few} new text. Add text, or adapt a published model (--start-from)."
    if empty:
        # Pairs of the file may be held out.
        numbers = getattr(train_corpus, "numbers", range(1, num_pairs + 1))
        shown = ", ".join(f"{numbers[number - 1]:,}" for number in empty)
        yield f"The first pairs with an empty side are {shown} (from 1)."
    first = list(itertools.islice(train_corpus, 10))
    are_names = [all(map(_WORD.fullmatch, pair)) for pair in first]
    if len(first) > 1 and are_names[0] and not any(are_names[1:]):
        advice = f"remove the line, or for --tsv give --columns {','.join(first[0])}"
        yield f"The first pair, {first[0]}, looks like names of columns: {advice}."
    if num_copies >= _SHARE_OF_COPIES * num_pairs:
        share = f"{num_copies:,} of {num_pairs:,} training pairs ({num_copies / num_pairs:.1%})"
        yield f"{share} have the same text on both sides: the model learns to copy."
    if num_leaks := sum(source.strip() in leaked for source, _ in valid):
        share = f"{num_leaks:,} of {len(valid):,} validation sources ({num_leaks / len(valid):.1%})"
        yield f"{share} are in the training text too: their scores are too good."

    def share_known(side, known):
        found = [word in known for pair in valid for word in _words(pair[side])]
        return sum(found) / max(len(found), 1)

    in_sources, in_targets = (share_known(0, known) for known in words)
    if in_targets > in_sources and share_known(1, words[0]) > share_known(1, words[1]):
        shares = f"{in_targets:.0%} of its source words are in the training targets, "
        shares += f"{in_sources:.0%} in the training sources"
        yield f"Source and target of the validation text seem exchanged: {shares}."


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())
