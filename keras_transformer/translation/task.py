"""`TranslationTask`: sentences into sentences, judged by BLEU, used by a `Translator`."""

import argparse
import itertools
import logging
import os
import pathlib
import re
import sys
from collections.abc import Mapping
from typing import Any

from keras_transformer.cli import text_files
from keras_transformer.cli.arguments import (
    CONSTRAINT_OPTIONS,
    add_constraint_options,
    add_long_lines,
    add_options,
    add_setting,
    add_shortlist_option,
    is_given,
    load_backend,
    load_pipeline,
)
from keras_transformer.errors import UserError
from keras_transformer.files import read_json
from keras_transformer.inference.tasks import Corpora, Task, toml_files
from keras_transformer.layouts import CONFIG_FILE
from keras_transformer.settings.setting import TEXTS, Setting, declare_options

_LOGGER = logging.getLogger(__name__)
_FEW_VALID_PAIRS = 100
_OPTIONS = {
    "source FILE": "training text in the source language, .gz too",
    "target FILE": "its translation, line by line",
    "valid_source FILE": "source text to choose and watch the model by; never the test set; None "
    "for 1 % of the training pairs, which are held out and kept as valid.source and valid.target",
    "valid_target FILE": "its translation",
    "tsv FILE": "training pairs, one a line, in columns with tabs between them",
    "valid_tsv FILE": "validation pairs in the same columns",
    "columns SOURCE,TARGET": "the columns of source and target: numbers from 1, such as 2,1, or "
    "names in the first line, such as en,de; None for 1,2",
    "dataset NAME": "a translation set of tensorflow-datasets, such as wmt14_translate/de-en",
    "source_language CODE": "language to translate from, such as en",
    "target_language CODE": "language to translate into, such as de",
    "train_split SPLIT=train": "split of the dataset to train on",
    "valid_split SPLIT=validation": "split of the dataset to validate on",
    "prepared DIR": "encoded pairs of `keras-transformer prepare`, validation pairs included",
    "data_dir DIR": "folder of tensorflow-datasets for its files",
}
_ENTRY = re.compile(r"([^=:,]+)=(-?[\d.]+(?:e-?\d+)?):([^,]+),([^,]+)(?:,([^,]+))?")
_CORPUS = Setting(
    "corpus",
    None,
    "training text that is mixed with that of other --corpus options, in proportion to their "
    "weights; TAG, such as '>>fra<<' or '<bt>', is put in front of its sources; may be given "
    "several times",
    TEXTS,
    metavar="NAME=WEIGHT:SOURCE,TARGET[,TAG]",
    table="data",
)
_ALSO_VALID = Setting(
    "also_valid",
    None,
    "a second validation set, scored like the first, such as one of the text that the model to "
    "start from learned; it chooses nothing; may be given several times",
    TEXTS,
    metavar="NAME=SOURCE,TARGET",
    table="data",
)
# Options of `evaluate` that replace --source and --reference.
_DATASET = ("dataset", "source_language", "data_dir")
_DATASET_FLAGS = ("--split", *("--" + name.replace("_", "-") for name in _DATASET))


class TranslationTask(Task):
    """Sentences into sentences, as `Task` describes it."""

    name, command = "translation", "translate"
    score_name, score_label = "bleu", "BLEU"
    settings = (
        *("shared_vocabulary", "bpe_dropout"),
        *("bleu_every", "bleu_beam_size", "bleu_lowercase", "bleu_tokenize"),
    )

    learns_from = "sentence pairs"
    missing_data = (
        "Sentence pairs come from --source and --target, from --tsv, from --corpus, or from "
        "--dataset with --source-language and --target-language; in `train` also from --prepared."
    )
    commands = {
        "prepare": "keras_transformer.cli.prepare",
        "translate": "keras_transformer.cli.translate",
        "score": "keras_transformer.cli.score",
        "shortlist": "keras_transformer.cli.shortlist",
    }
    options = (*declare_options("data", _OPTIONS), _CORPUS, _ALSO_VALID)
    data_kinds = {
        "source": ("source", "target"),
        "tsv": ("tsv",),
        "corpus": ("corpus", "valid_source", "valid_target"),
        "dataset": ("dataset", "source_language", "target_language"),
        "prepared": ("prepared",),
    }
    more_data = {
        "source": (("valid_source", "valid_target"),),
        "tsv": (("valid_tsv",), ("columns",)),
    }
    model_options = ("--source", "--long-lines", "--shortlist", *CONSTRAINT_OPTIONS)
    evaluate_inputs = ("source",)
    valid_files = {"--source": "valid_source", "--reference": "valid_target"}

    @property
    def pipeline(self) -> type:
        from keras_transformer.inference.translator import Translator

        return Translator

    @property
    def served_functions(self) -> type:
        from keras_transformer.translation.signatures import TranslatorFunctions

        return TranslatorFunctions

    @property
    def experiments(self) -> dict[str, pathlib.Path]:
        return toml_files(pathlib.Path(__file__).with_name("experiments"))

    def check(self, corpus, settings) -> None:
        """Raises an error if BLEU's tokenizer cannot be loaded; accepts any corpus of pairs."""
        if settings.bleu_every and settings.bleu_tokenize:
            from keras_transformer.evaluation.bleu import make_bleu

            make_bleu(settings.bleu_tokenize)

    def learn_tokenizers(self, corpus, settings, source, report):
        from keras_transformer.data.vocabularies import learn_vocabularies

        return learn_vocabularies(corpus, settings, report)

    def make_score(self, corpus, tokenizers, settings, recipe):
        from keras_transformer.data.subword_tokenizer import SubwordTokenizer, join_subwords
        from keras_transformer.training.scores_on_dev import BleuOnDev, fast_search

        pairs = [(source, target) for source, target in corpus if source and target]
        if not settings.bleu_every or not pairs:
            return None
        is_subword = isinstance(tokenizers.of_target, SubwordTokenizer)
        return BleuOnDev(
            [source for source, _ in pairs],
            [join_subwords(target) if is_subword else target for _, target in pairs],
            tokenizers.source,
            tokenizers.target,
            search=fast_search(recipe, settings.bleu_beam_size),
            every=settings.bleu_every,
            lowercase=settings.bleu_lowercase,
            tokenize=settings.bleu_tokenize or ("none" if is_subword else "13a"),
        )

    def make_result(self, model, tokenizers, settings, recipe, sentence_profile):
        from keras_transformer.inference.model_directory import read_config
        from keras_transformer.training.scores_on_dev import beam_search

        options = {"search": beam_search(recipe, recipe.beam_size), "recipe": recipe}
        if settings.start_from is not None:
            options["origin"] = read_config(settings.start_from).get("origin")
        return self.pipeline(model, *tokenizers, sentence_profile=sentence_profile, **options)

    def open_corpora(self, kind: str, values: dict[str, Any]) -> Corpora:
        also_valid = _open_also_valid(values["also_valid"] or ())
        if values["bleu_tokenize"]:
            from keras_transformer.evaluation.bleu import make_bleu

            make_bleu(values["bleu_tokenize"])  # Raises if a package is missing.
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
        if kind == "corpus" and (tokenizer := _given_tokenizer(values)):
            from keras_transformer.data.mixed_corpus import check_tags

            check_tags(train_corpus, tokenizer)
        return Corpora(train_corpus, valid_corpus, also_valid=also_valid)

    def data_files(self, kind: str, values: Mapping[str, Any]) -> list[str]:
        """Returns the names of the files of a kind of data, for `prepare`."""
        names = itertools.chain(self.data_kinds[kind], *self.more_data.get(kind, ()))
        files = [values[name] for name in names if name not in ("corpus", "columns")]
        return [*filter(None, files), *(file for entry in _entries(values) for file in entry[2:4])]

    def open_known_corpus(self, values: Mapping[str, Any]) -> Any:
        from keras_transformer.data.held_out import hold_out

        if values["prepared"] and os.path.isdir(values["prepared"]):
            from keras_transformer.data import PreparedCorpus

            return PreparedCorpus.load(values["prepared"]).read("train")
        files = [values[name] for name in ("tsv", "source", "target") if values[name]]
        files += [file for entry in _entries(values) for file in entry[2:4]]
        is_named = values["tsv"] or len(files) > 1
        if not is_named or not all(map(os.path.isfile, files)):
            return None
        if values["valid_source"] or values["valid_tsv"]:
            return _open_text(values)
        return hold_out(_open_text(values))[0]  # as `train` does

    def describe_data(self, values: Mapping[str, Any]) -> str:
        if values["dataset"]:
            text = "{dataset}, {source_language} to {target_language}: {train_split}, validated on "
            return (text + "{valid_split}").format_map(values)
        names = ("prepared", "tsv", "source", "target")
        named = [values[name] for name in names if values[name]]
        return " and ".join([*named, *(values["corpus"] or ())])

    def add_evaluate_options(self, parser: argparse.ArgumentParser) -> None:
        from keras_transformer.settings.training_settings import BLEU_TOKENIZERS  # slow to import

        group = parser.add_argument_group("translation")
        options = {
            "--source FILE": "text to translate with --model, line by line",
            "--split SPLIT": "split of the dataset (default: test)",
            "--lowercase": "ignore case in the scores",
        }
        add_options(group, options)
        for option in self.options:
            if option.name in _DATASET:
                add_setting(group, option)
        text = "language to translate into; for de and en, the tokenized BLEU of older papers is "
        add_options(group, {"--target-language CODE": text + "printed too"})
        text = f"sacreBLEU's tokenizer: {', '.join(BLEU_TOKENIZERS)} (default: 13a)"
        add_options(group, {"--tokenize NAME": text}, choices=BLEU_TOKENIZERS)
        add_long_lines(group, ("split", "truncate", "error"), "split")
        add_shortlist_option(group)
        add_constraint_options(parser)

    def evaluate(self, arguments: argparse.Namespace) -> dict[str, Any]:
        if arguments.tokenize:
            from keras_transformer.evaluation.bleu import make_bleu

            make_bleu(arguments.tokenize)
        lines, references, report = _texts_to_score(arguments)
        if arguments.model:
            lines, details = _translate(self.name, arguments, lines)
            report |= details
        from keras_transformer.evaluation import corpus_bleu, corpus_chrf, paper_bleu
        from keras_transformer.evaluation.bleu import PAPER_LANGUAGES

        case, language = {"lowercase": arguments.lowercase}, arguments.target_language
        scores = [
            corpus_bleu(lines, references, tokenize=arguments.tokenize or "13a", **case),
            corpus_chrf(lines, references, **case),
        ]
        if language in PAPER_LANGUAGES:
            scores.append(paper_bleu(lines, references, language=language, **case))
        width = max(len(score.name) for score in scores)
        for score in scores:
            sys.stdout.write(f"{score.name:<{width}}  {score.score:6.2f}  {score.signature}\n")
        names = ("name", "score", "signature")
        return report | {"scores": [{n: getattr(score, n) for n in names} for score in scores]}


def _entries(values) -> list[tuple[str, ...]]:
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
    tags = {name: tag for name, *_, tag in _entries(values) if tag}
    for name, weight, source, target, _ in _entries(values):
        if name in corpora:
            raise UserError(f"The names of --corpus must differ. Received: {name!r} twice")
        corpora[name] = ParallelTextCorpus(source, target)
        weights[name] = float(weight)
    return MixedCorpus(corpora, weights, tags)


def _given_tokenizer(values):
    """Returns the source tokenizer of `--vocabulary` or `--start-from`; None without them."""
    from keras_transformer.cli.vocab import load_vocabulary  # slow to import
    from keras_transformer.data.tokenizer_pair import TokenizerPair

    folder = values["start_from"]
    # What else is wrong with a model directory is found when the model is loaded.
    if values["vocabulary"] or not os.path.isfile(os.path.join(folder or "", CONFIG_FILE)):
        return load_vocabulary(values["vocabulary"])
    config = read_json(pathlib.Path(folder, CONFIG_FILE))
    return TokenizerPair.load(folder, config.get("shared_tokenizer", True)).source


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
    from keras_transformer.data.held_out import hold_out
    from keras_transformer.translation.text_warnings import text_warnings

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
    for warning in text_warnings(corpus, valid_corpus, bool(values.get("start_from"))):
        _LOGGER.warning(warning)
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
    prepared = PreparedCorpus.load(values["prepared"])
    values["shared_vocabulary"] = prepared.target_tokenizer is None
    values["max_length"] = values["max_length"] or prepared.max_length
    if values["max_length"] > prepared.max_length:
        rule = f"{values['prepared']!r} has no sentence of more than {prepared.max_length} subwords"
        raise UserError(f"{rule}. Received: --max-length {values['max_length']}")
    tokenizers = prepared.source_tokenizer, prepared.target_tokenizer
    return Corpora(prepared.read("train"), prepared.valid_text, *tokenizers)


def _texts_to_score(arguments):
    """Returns the sources or the hypotheses, the references, and their entries in the report."""
    if arguments.dataset:
        return _dataset_to_score(arguments)
    for flag in _DATASET_FLAGS:
        if is_given(arguments, flag):
            raise UserError(f"{flag} goes with --dataset.")
    if not arguments.reference:
        raise UserError("The references come from --reference FILE or from --dataset NAME.")
    if arguments.model and not arguments.source:
        raise UserError("--model needs --source FILE, the text to translate.")
    references = [text_files.read_all_lines(path, "reference") for path in arguments.reference]
    name = arguments.hypothesis or arguments.source
    lines = text_files.read_all_lines(name, "hypothesis" if arguments.hypothesis else "source")
    named_references = zip(arguments.reference, references, strict=True)
    text_files.require_same_length([(name, lines), *named_references])
    report = {"reference": arguments.reference, "num_lines": len(lines)}
    return lines, references, report | ({"source": name} if arguments.model else {})


def _dataset_to_score(arguments):
    languages = (arguments.source_language, arguments.target_language)
    if arguments.source or arguments.reference or None in languages:
        rule = "--dataset needs --source-language and --target-language, and takes the place of "
        raise UserError(f"{rule}--source and --reference.")
    from keras_transformer.data import TfdsCorpus

    name, split = arguments.dataset, arguments.split or "test"
    corpus = TfdsCorpus(name, split, *languages, data_dir=arguments.data_dir)
    lines, references = map(list, zip(*corpus, strict=True))
    if arguments.hypothesis:
        lines = text_files.read_all_lines(arguments.hypothesis, "hypothesis")
        sides = (arguments.hypothesis, lines), (f"{name} {split}", references)
        text_files.require_same_length(sides)
    return lines, [references], {"dataset": name, "split": split, "num_lines": len(lines)}


def _translate(task, arguments, sources):
    translator, options = load_pipeline(arguments, task)
    from keras_transformer.cli.progress import Progress, say  # slow to import
    from keras_transformer.decoding import search_to_dict

    long_lines = arguments.long_lines or "split"
    if long_lines == "error":
        limits = translator.max_source_length, repr(arguments.source)
        text_files.check_lengths(translator.source_tokenizer, sources, *limits)
    progress = Progress("translating", total=len(sources), unit="lines")
    hypotheses, seconds = text_files.answer_all(
        translator.translate, sources, progress, long_texts=long_lines, **options
    )
    hypotheses = [text_files.as_line(text) for text in hypotheses]
    say(f"translated {len(sources):,} lines in {seconds:.1f} s")
    text_files.report_split(translator, len(sources))
    text_files.save_answers(arguments.output, hypotheses)
    return hypotheses, {"search": search_to_dict(options["search"]), "seconds": round(seconds, 2)}
