"""`keras-transformer evaluate`: scores a translator, or translations that already exist."""

import argparse
import sys
from collections.abc import Iterable
from typing import Any

from keras_transformer.cli.arguments import (
    add_constraint_options,
    add_options,
    add_setting,
    is_given,
)
from keras_transformer.cli.line_by_line import (
    add_long_lines,
    answer_all,
    check_lengths,
    load_pipeline,
    report_split,
    save_answers,
)
from keras_transformer.cli.progress import Progress, say
from keras_transformer.cli.shortlist import add_shortlist_option
from keras_transformer.cli.text_files import as_line, read_all_lines, require_same_length
from keras_transformer.errors import UserError
from keras_transformer.settings.setting import Setting
from keras_transformer.settings.training_settings import BLEU_TOKENIZERS

# Options of `evaluate` that replace --source and --reference.
_DATASET = ("dataset", "source_language", "data_dir")
_DATASET_FLAGS = ("--split", *("--" + name.replace("_", "-") for name in _DATASET))


def define_options(parser: argparse.ArgumentParser, data: Iterable[Setting]) -> None:
    """Adds the options of `evaluate` that only translation has; `data` are those of `train`."""
    group = parser.add_argument_group("translation")
    options = {
        "--source FILE": "text to translate with --model, line by line",
        "--split SPLIT": "split of the dataset (default: test)",
        "--lowercase": "ignore case in the scores",
    }
    add_options(group, options)
    for option in data:
        if option.name in _DATASET:
            add_setting(group, option)
    text = (
        "language to translate into; for de and en, the tokenized BLEU of older papers is "
        "printed too"
    )
    add_options(group, {"--target-language CODE": text})
    text = f"sacreBLEU's tokenizer: {', '.join(BLEU_TOKENIZERS)} (default: 13a)"
    add_options(group, {"--tokenize NAME": text}, choices=BLEU_TOKENIZERS)
    add_long_lines(group, ("split", "truncate", "error"), "split")
    add_shortlist_option(group)
    add_constraint_options(parser)


def evaluate(task: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Scores a model or existing translations, prints the scores and returns a report."""
    if arguments.tokenize:
        from keras_transformer.evaluation.bleu import make_bleu

        make_bleu(arguments.tokenize)
    lines, references, report = _texts_to_score(arguments)
    if arguments.model:
        lines, details = _translate(task, arguments, lines)
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
    width = max(len(one.name) for one in scores)
    for one in scores:
        sys.stdout.write(f"{one.name:<{width}}  {one.score:6.2f}  {one.signature}\n")
    names = ("name", "score", "signature")
    return report | {"scores": [{n: getattr(one, n) for n in names} for one in scores]}


def _texts_to_score(arguments: argparse.Namespace) -> tuple[list[str], list[list[str]], dict]:
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
    references = [read_all_lines(path, "reference") for path in arguments.reference]
    name = arguments.hypothesis or arguments.source
    lines = read_all_lines(name, "hypothesis" if arguments.hypothesis else "source")
    require_same_length([(name, lines), *zip(arguments.reference, references, strict=True)])
    report = {"reference": arguments.reference, "num_lines": len(lines)}
    return lines, references, report | ({"source": name} if arguments.model else {})


def _dataset_to_score(arguments: argparse.Namespace) -> tuple[list[str], list[list[str]], dict]:
    languages = (arguments.source_language, arguments.target_language)
    if arguments.source or arguments.reference or None in languages:
        raise UserError(
            "--dataset needs --source-language and --target-language, and takes the place of "
            "--source and --reference."
        )
    from keras_transformer.data import TfdsCorpus

    name, split = arguments.dataset, arguments.split or "test"
    corpus = TfdsCorpus(name, split, *languages, data_dir=arguments.data_dir)
    lines, references = map(list, zip(*corpus, strict=True))
    if arguments.hypothesis:
        lines = read_all_lines(arguments.hypothesis, "hypothesis")
        require_same_length([(arguments.hypothesis, lines), (f"{name} {split}", references)])
    return lines, [references], {"dataset": name, "split": split, "num_lines": len(lines)}


def _translate(
    task: str, arguments: argparse.Namespace, sources: list[str]
) -> tuple[list[str], dict]:
    translator, options = load_pipeline(arguments, task)
    from keras_transformer.decoding import search_to_dict

    long_lines = arguments.long_lines or "split"
    if long_lines == "error":
        limit = translator.max_source_length
        check_lengths(translator.source_tokenizer, sources, limit, repr(arguments.source))
    progress = Progress("translating", total=len(sources), unit="lines")
    hypotheses, seconds = answer_all(
        translator.translate, sources, progress, long_texts=long_lines, **options
    )
    hypotheses = [as_line(text) for text in hypotheses]
    say(f"translated {len(sources):,} lines in {seconds:.1f} s")
    report_split(translator, len(sources))
    save_answers(arguments.output, hypotheses)
    return hypotheses, {"search": search_to_dict(options["search"]), "seconds": round(seconds, 2)}
