"""`keras-transformer translate`: translates text line by line."""

import functools

from keras_transformer.cli import text_files
from keras_transformer.cli.arguments import (
    add_constraint_options,
    add_line_options,
    add_long_lines,
    add_options,
    add_shortlist_option,
    load_pipeline,
)
from keras_transformer.cli.progress import ProgressBar
from keras_transformer.cli.text_files import as_line
from keras_transformer.errors import UserError

_N_BEST_ADVICE = "with --n-best split the line into sentences, or use --long-lines truncate"


def define_options(parser):
    files, batches = add_line_options(parser, "translated")
    text = "beginning of each answer, line by line; an empty line leaves it free"
    add_options(files, {"--prefix FILE": text})
    add_long_lines(batches, ("split", "truncate", "error"), "split; error with --n-best")
    add_shortlist_option(batches)
    add_constraint_options(parser)


def run(arguments):
    inputs = [arguments.input or "-", arguments.prefix, *arguments.model]
    text_files.check_output(arguments.output, inputs)
    if arguments.n_best is not None and arguments.long_lines == "split":
        rule = "--n-best cannot rank a line that was translated in parts"
        advice = "Use --long-lines truncate or error"
        raise UserError(f"{rule}. {advice}. Received: --long-lines split")
    arguments.long_lines = arguments.long_lines or ("error" if arguments.n_best else "split")
    total, prefixes = text_files.count_lines(arguments), None
    if arguments.prefix is not None:
        prefixes = text_files.read_all_lines(arguments.prefix, "prefix")
        if total is not None:
            _check_prefixes(prefixes, total, arguments.prefix)
    translator, options = load_pipeline(arguments, "translation")
    if total is not None and arguments.long_lines == "error":
        for _ in _chunks(translator, arguments, prefixes):
            pass  # finds lines that are too long before anything is translated
    num_lines = text_files.write_answers(
        arguments,
        ProgressBar("translating", total=total, unit="lines"),
        _chunks(translator, arguments, prefixes),
        functools.partial(_answers, translator, prefixes, arguments),
        options,
    )
    text_files.report_split(translator, num_lines)


def _chunks(translator, arguments, prefixes):
    """Yields chunks of lines; checks their lengths and the number of prefixes."""
    name = "standard input" if arguments.input in (None, "-") else repr(arguments.input)
    name = "the command line" if arguments.texts else name
    options = {} if arguments.n_best is None else {"advice": _N_BEST_ADVICE}
    tokenizer, limit = translator.source_tokenizer, translator.max_source_length
    num_lines = 0
    for chunk in text_files.chunks(text_files.input_lines(arguments), arguments.chunk_size):
        if arguments.long_lines == "error":
            first = num_lines + 1
            text_files.check_lengths(tokenizer, chunk, limit, name, first=first, **options)
        num_lines += len(chunk)
        if prefixes is not None and len(prefixes) < num_lines:
            break
        yield chunk
    if prefixes is not None:
        _check_prefixes(prefixes, num_lines, arguments.prefix)


def _check_prefixes(prefixes, num_lines, path):
    if len(prefixes) != num_lines:
        # Not all lines may have been read yet.
        number = "more" if len(prefixes) < num_lines else f"{num_lines:,}"
        raise UserError(
            "The prefix file must have as many lines as the input. "
            f"Received: {path!r} with {len(prefixes):,}, and {number} lines of input."
        )


def _answers(translator, prefixes, arguments, chunk, number, options):
    if prefixes is not None:
        options["prefixes"] = prefixes[number - 1 : number - 1 + len(chunk)]
    if arguments.n_best is None:
        long_texts = arguments.long_lines
        yield from map(as_line, translator.translate(chunk, long_texts=long_texts, **options))
        return
    for offset, answers in enumerate(translator.hypotheses(chunk, **options)):
        for rank, answer in enumerate(answers, start=1):
            text = as_line(answer.text).replace("\t", " ")
            yield f"{number + offset}\t{rank}\t{answer.score:.6f}\t{text}"
