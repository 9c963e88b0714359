"""`TranslationCommands`: translation on the command line."""

import argparse
import dataclasses
import sys
from collections.abc import Mapping
from typing import Any

from keras_transformer.cli import text_files, translation_data
from keras_transformer.cli.arguments import (
    CONSTRAINT_OPTIONS,
    GLOSSARY_OPTIONS,
    add_constraint_options,
    add_engine_option,
    add_glossary_options,
    add_long_lines,
    add_option,
    add_options,
    add_shortlist_option,
    in_languages,
    is_given,
    load_pipeline,
    options_of,
)
from keras_transformer.cli.progress import ProgressBar, say
from keras_transformer.cli.task_commands import Corpora, TaskCommands
from keras_transformer.cli.translation_data import TranslationData
from keras_transformer.errors import UserError
from keras_transformer.translation.task import BLEU_TOKENIZERS

# Options of `evaluate` that replace --source and --reference.
_DATASET = ("dataset", "source_language", "data_dir")
_LANGUAGES = ("source_language",), ("target_language",)  # Each may be given alone.
_DATASET_FLAGS = ("--split", *("--" + name.replace("_", "-") for name in _DATASET))


class TranslationCommands(TaskCommands):
    """Translation on the command line, as `TaskCommands` describes it."""

    learns_from = "sentence pairs"
    missing_data = (
        "Sentence pairs come from --source and --target, from --tsv, from --corpus, or from "
        "--dataset with --source-language and --target-language; in `train` also from --prepared."
    )
    commands = {
        "prepare": "keras_transformer.cli.prepare",
        **dict.fromkeys(("translate", "score", "shortlist"), "keras_transformer.cli.translate"),
    }
    data = TranslationData
    headings = {"data": "sentence pairs: two text files, one TSV file, or a dataset by name"}
    data_kinds = {
        "source": (("source", "target"), ("valid_source", "valid_target"), *_LANGUAGES),
        "tsv": (("tsv",), ("valid_tsv",), ("columns",), *_LANGUAGES),
        "corpus": (("corpus", "valid_source", "valid_target"), *_LANGUAGES),
        "dataset": (("dataset", "source_language", "target_language"),),
        "prepared": (("prepared",), *_LANGUAGES),
    }
    model_options = ("--source", "--long-lines", "--shortlist", "--engine", *CONSTRAINT_OPTIONS,
                     *GLOSSARY_OPTIONS)  # fmt: skip
    evaluate_inputs = ("source", "glossary", "baseline")
    valid_files = {"--source": "valid_source", "--reference": "valid_target"}
    score_options = {
        "--target-language": "target_language",
        "--tokenize": "bleu_tokenize",
        "--lowercase": "bleu_lowercase",
    }

    def open_corpora(self, kind: str, values: dict[str, Any]) -> Corpora:
        return translation_data.open_corpora(kind, values)

    def open_known_corpus(self, values: Mapping[str, Any]) -> Any:
        return translation_data.open_known_corpus(values)

    def task_settings(self, values: Mapping[str, Any]) -> dict[str, Any]:
        from keras_transformer.evaluation.bleu import bleu_tokenizer

        tokenize = bleu_tokenizer(values["target_language"])
        is_default = values["bleu_tokenize"] or tokenize == "13a"
        return {} if is_default else {"bleu_tokenize": tokenize}

    def describe_data(self, values: Mapping[str, Any]) -> str:
        if values["dataset"]:
            text = "{dataset}, {source_language} to {target_language}: {train_split}, validated on "
            return (text + "{valid_split}").format_map(values)
        names = ("prepared", "tsv", "source", "target")
        named = [values[name] for name in names if values[name]]
        return " and ".join([*named, *(values["corpus"] or ())])

    def add_evaluate_options(self, parser: argparse.ArgumentParser) -> None:
        group = parser.add_argument_group("translation")
        options = {
            "--source FILE": "text to translate with --model, line by line",
            "--split SPLIT": "split of the dataset (default: test)",
            "--lowercase": "ignore case in the scores",
            "--baseline FILE": "translations of another system, line by line: prints how much "
            "better the scores are than its, and the probability of such a difference by chance "
            "(paired bootstrap)",
        }
        add_options(group, options)
        options = options_of(TranslationData)
        for name in _DATASET:
            add_option(group, options[name])
        text = "language to translate into, such as zh, which chooses BLEU's tokenizer; for de and "
        text += "en, the tokenized BLEU of older papers is printed too (default: that of a --model "
        text += "of several languages)"
        add_options(group, {"--target-language CODE": text})
        text = f"sacreBLEU's tokenizer: {', '.join(BLEU_TOKENIZERS)} (default: that of the "
        text += "language, 13a for most, and none instead of 13a for a --model of `subword` text)"
        add_options(group, {"--tokenize NAME": text}, choices=BLEU_TOKENIZERS)
        add_long_lines(group, ("split", "truncate", "error"), "split")
        add_engine_option(group)
        add_shortlist_option(group)
        add_glossary_options(group)
        add_constraint_options(parser)

    def evaluate(self, arguments: argparse.Namespace) -> dict[str, Any]:
        from keras_transformer.data.lookup_tokenizers import SubwordTokenizer, join_subwords
        from keras_transformer.evaluation.bleu import (
            PAPER_LANGUAGES,
            bleu_tokenizer,
            corpus_bleu,
            corpus_chrf,
            make_bleu,
            paper_bleu,
            warn_without_spaces,
        )

        files = [arguments.hypothesis, arguments.source, arguments.baseline]
        files += arguments.reference or ()
        if files.count("-") > 1:
            raise UserError("Only one of the files can be standard input, '-'.")
        language = arguments.target_language
        tokenize = arguments.tokenize or bleu_tokenizer(language)
        make_bleu(tokenize)  # Raises if a package is missing.
        lines, references, report = _texts_to_score(arguments)
        baseline = _read_baseline(arguments, lines)
        if arguments.model:
            lines, details, tokenizer = _translate(self.task.name, arguments, lines)
            report |= details
            language = language or tokenizer.language
            is_subword = isinstance(tokenizer, SubwordTokenizer)
            default = bleu_tokenizer(language)
            if is_subword:  # As `train` scores them.
                references = [list(map(join_subwords, of_file)) for of_file in references]
                baseline = baseline and list(map(join_subwords, baseline))
                default = "none" if default == "13a" else default
            tokenize = arguments.tokenize or default
        warn_without_spaces(references[0], tokenize, "give --target-language CODE or --tokenize")
        case = {"lowercase": arguments.lowercase}
        scores = [
            corpus_bleu(lines, references, tokenize=tokenize, **case),
            corpus_chrf(lines, references, **case),
        ]
        if language in PAPER_LANGUAGES:
            scores.append(paper_bleu(lines, references, language=language, **case))
        width = max(len(score.name) for score in scores)
        for score in scores:
            sys.stdout.write(f"{score.name:<{width}}  {score.score:6.2f}  {score.signature}\n")
        if baseline is not None:
            options = {"tokenize": tokenize, **case}
            comparisons = _compare(lines, baseline, references, arguments.baseline, options)
            report["baseline"] = {"file": arguments.baseline, "comparisons": comparisons}
        names = ("name", "score", "signature")
        return report | {"scores": [{n: getattr(score, n) for n in names} for score in scores]}


def _texts_to_score(arguments):
    """Returns the sources or the hypotheses, the references, and their entries in the report."""
    if arguments.dataset:
        return _dataset_to_score(arguments)
    for flag in _DATASET_FLAGS:
        # A model of several languages has that of the text as a choice.
        if is_given(arguments, flag) and not (arguments.model and flag == "--source-language"):
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


def _read_baseline(arguments, lines):
    """Returns the lines of `--baseline`, as many as are scored; None without it."""
    if arguments.baseline is None:
        return None
    baseline = text_files.read_all_lines(arguments.baseline, "baseline")
    scored = arguments.hypothesis or arguments.source or arguments.dataset
    text_files.require_same_length([(arguments.baseline, baseline), (scored, lines)])
    return baseline


def _compare(lines, baseline, references, name, options):
    """Prints the differences between two systems, and returns them for the report."""
    from keras_transformer.evaluation import compare_systems

    comparisons = compare_systems(lines, baseline, references, **options)
    sys.stdout.write(f"difference from {name} (chance is unlikely where p < 0.05):\n")
    for comparison in comparisons:
        sys.stdout.write(f"  {comparison}\n")
    return [dataclasses.asdict(comparison) for comparison in comparisons]


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
    """Returns the answers to sources, their entries in the report, and the target tokenizer."""
    translator, options = load_pipeline(arguments, task, "float32")
    from keras_transformer.decoding import search_to_dict
    from keras_transformer.evaluation.bleu import bleu_tokenizer, make_bleu

    # Of another model, the options name the languages of the dataset and of BLEU.
    names_dataset = arguments.dataset or arguments.source_language is None
    if translator.target_tokenizer.language or not names_dataset:
        translator = in_languages(translator, arguments)
    language = arguments.target_language or translator.target_tokenizer.language
    make_bleu(arguments.tokenize or bleu_tokenizer(language))  # Raises if a package is missing.
    long_lines = arguments.long_lines or "split"
    if long_lines == "error":
        text_files.check_lengths(
            translator.source_tokenizer,
            sources,
            translator.max_source_length,
            repr(arguments.source),
        )
    progress = ProgressBar("translating", total=len(sources), unit="lines")
    hypotheses, seconds = text_files.answer_all(
        translator.translate, sources, progress, long_texts=long_lines, **options
    )
    hypotheses = [text_files.as_line(text) for text in hypotheses]
    say(f"translated {len(sources):,} lines in {seconds:.1f} s")
    text_files.report_split(translator, len(sources))
    text_files.save_answers(arguments.output, hypotheses)
    details = {"search": search_to_dict(options["search"]), "seconds": round(seconds, 2)}
    return hypotheses, details, translator.target_tokenizer
