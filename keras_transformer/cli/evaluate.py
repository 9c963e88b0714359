"""`keras-transformer evaluate`: the scores of a model, or of answers that exist already."""

import argparse
import json
import pathlib
import sys
import time

from keras_transformer.cli.arguments import (
    CONSTRAINT_OPTIONS,
    TOKENIZE_CHOICES,
    add_command,
    add_constraint_options,
    add_model_option,
    add_search_options,
    beam_search,
    constrain_search,
    is_given,
)
from keras_transformer.cli.backend import load_backend_in_streams
from keras_transformer.cli.long_lines import add_batch_options, check_lengths, report_split
from keras_transformer.cli.progress import Progress, say
from keras_transformer.cli.text_files import (
    as_line,
    open_output,
    read_all_lines,
    require_same_length,
)
from keras_transformer.errors import UserError
from keras_transformer.parsing.cli.evaluate import (
    PARSING_OPTIONS,
    add_parsing_options,
    check_outputs,
    evaluate_parsing,
)

_DESCRIPTION = """
Translates a source file with a model and compares with one or more reference translations, or
compares a translation that exists already (--hypothesis). Prints sacreBLEU and chrF with the
signatures that make them comparable, and, labelled as such, the tokenised, compound-split BLEU in
which the paper reports its figures: it is meant for German and English text as in the paper, so
leave it aside for other languages. References are raw text, never tokenised beforehand.

With --task parsing, --reference is a file of gold trees: a parser reads their words (--model), or
--hypothesis holds a parse a line. Prints EVALB's summary, F1 with the sentences that EVALB leaves
out counted as wrong, and the signature.
"""

_EXAMPLE = """
keras-transformer evaluate --model runs/en-de --source test.en --reference test.de
keras-transformer evaluate --hypothesis test.out --reference test.de --lowercase --json scores
keras-transformer evaluate --task parsing --model runs/parser --reference test.trees
keras-transformer evaluate --task parsing --hypothesis test.parses --reference test.trees
"""

_MODEL_OPTIONS = (
    "--source",
    "--output",
    "--streams",
    "--beam-size",
    "--length-penalty",
    "--long-lines",
    *CONSTRAINT_OPTIONS,
)


def add_parser(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    """Adds the parser of this command.

    Args:
        commands: what `parser.add_subparsers` returned.

    Returns:
        The parser.
    """
    parser = add_command(
        commands,
        "evaluate",
        "BLEU and chrF against references, F1 against trees",
        _DESCRIPTION,
        _EXAMPLE,
    )
    parser.add_argument(
        "--task",
        choices=("translation", "parsing"),
        default="translation",
        metavar="TASK",
        help="what is evaluated: translation or parsing (default: %(default)s)",
    )
    files = parser.add_argument_group("what to evaluate: a model with a source, or a hypothesis")
    what = files.add_mutually_exclusive_group(required=True)
    add_model_option(what)
    what.add_argument(
        "--hypothesis",
        metavar="FILE",
        help="a translation that exists already, plain text; or a parse a line",
    )
    files.add_argument(
        "--source", metavar="FILE", help="text to translate, one sentence a line: with --model"
    )
    files.add_argument(
        "--reference",
        required=True,
        action="extend",
        nargs="+",
        metavar="FILE",
        help="correct translations, as many lines; several files give several references a line; "
        "or one file of gold trees",
    )
    files.add_argument("--output", metavar="FILE", help="keep the model's answers here")
    files.add_argument("--json", metavar="FILE", help="write the scores here as JSON")
    metric = parser.add_argument_group("metric of translations")
    metric.add_argument("--lowercase", action="store_true", help="ignore case")
    metric.add_argument(
        "--tokenize",
        choices=TOKENIZE_CHOICES,
        metavar="NAME",
        help="sacreBLEU's tokenizer: " + ", ".join(TOKENIZE_CHOICES) + " (default: 13a)",
    )
    add_parsing_options(parser)
    add_search_options(parser, n_best=False)
    add_constraint_options(parser)
    add_batch_options(parser, ("split", "truncate", "error"), "split")
    return parser


def run(arguments: argparse.Namespace) -> None:
    """Evaluates.

    Args:
        arguments: parsed arguments.
    """
    if arguments.task == "parsing":
        evaluate_parsing(arguments)
        return
    _check(arguments)
    references = [read_all_lines(path, "reference") for path in arguments.reference]
    name = arguments.hypothesis or arguments.source
    lines = read_all_lines(name, "hypothesis" if arguments.hypothesis else "source")
    require_same_length([(name, lines), *zip(arguments.reference, references, strict=True)])

    report = {"reference": arguments.reference, "num_lines": len(lines)}
    if arguments.hypothesis:
        report["hypothesis"] = arguments.hypothesis
        hypotheses = lines
    else:
        hypotheses, details = _translate(arguments, lines)
        model = arguments.model[0] if len(arguments.model) == 1 else arguments.model
        report |= {"model": model, "source": arguments.source, **details}
    scores = _scores(hypotheses, references, arguments.lowercase, arguments.tokenize or "13a")
    width = max(len(score["name"]) for score in scores)
    for score in scores:
        sys.stdout.write(f"{score['name']:<{width}}  {score['score']:6.2f}  {score['signature']}\n")
    if arguments.json:
        report["scores"] = scores
        with open_output(arguments.json) as file:
            file.write(json.dumps(report, indent=2, ensure_ascii=False) + "\n")


def _check(arguments: argparse.Namespace) -> None:
    for option in PARSING_OPTIONS:
        if is_given(arguments, option):
            raise UserError(f"{option} goes with --task parsing.")
    if arguments.model and not arguments.source:
        raise UserError("--model needs --source FILE, the text to translate.")
    for option in _MODEL_OPTIONS:
        if arguments.hypothesis and is_given(arguments, option):
            raise UserError(f"{option} goes with --model: with --hypothesis nothing is translated.")
    check_outputs(arguments)
    if arguments.tokenize:
        from keras_transformer.evaluation.bleu import make_bleu

        make_bleu(arguments.tokenize)


def _translate(arguments: argparse.Namespace, sources: list[str]) -> tuple[list[str], dict]:
    num_streams = load_backend_in_streams(arguments.streams)
    from keras_transformer import Translator
    from keras_transformer.decoding import search_to_dict

    translator = Translator.load(arguments.model)
    search = constrain_search(arguments, beam_search(arguments, translator.search))
    long_lines = arguments.long_lines or "split"
    if long_lines == "error":
        check_lengths(translator, sources, repr(arguments.source))
    start = time.monotonic()
    with Progress("translating", total=len(sources), unit="lines") as progress:
        hypotheses = translator.translate(
            sources,
            search=search,
            batch_size=arguments.batch_size,
            num_streams=num_streams,
            progress=progress.update,
            long_texts=long_lines,
        )
    hypotheses = [as_line(text) for text in hypotheses]
    seconds = time.monotonic() - start
    say(f"translated {len(sources):,} lines in {seconds:.1f} s")
    report_split(translator, len(sources))
    if arguments.output:
        with open_output(arguments.output) as file:
            file.writelines(line + "\n" for line in hypotheses)
        say(f"wrote {pathlib.Path(arguments.output)}")
    return hypotheses, {"search": search_to_dict(search), "seconds": round(seconds, 2)}


def _scores(hypotheses, references, lowercase: bool, tokenize: str) -> list[dict]:
    from keras_transformer.evaluation import corpus_bleu, corpus_chrf, paper_bleu

    scores = [
        corpus_bleu(hypotheses, references, lowercase=lowercase, tokenize=tokenize),
        corpus_chrf(hypotheses, references, lowercase=lowercase),
        paper_bleu(hypotheses, references, lowercase=lowercase),
    ]
    return [
        {"name": score.name, "score": score.score, "signature": score.signature} for score in scores
    ]
