"""`translate`, `score` and `shortlist`: the commands for text and its translations."""

import functools
import math

from keras_transformer.cli import text_files
from keras_transformer.cli.arguments import (
    add_constraint_options,
    add_engine_option,
    add_glossary_options,
    add_language_options,
    add_line_options,
    add_long_lines,
    add_model_option,
    add_options,
    add_shortlist_option,
    in_languages,
    load_pipeline,
)
from keras_transformer.cli.backend import load_backend
from keras_transformer.cli.progress import ProgressBar, say
from keras_transformer.cli.text_files import as_line
from keras_transformer.errors import UserError

_N_BEST_ADVICE = "with --n-best split the line into sentences, or use --long-lines truncate"
_CHUNK_SIZE = 1024
_SCORE_ADVICE = "split it and its target into sentences, or use --long-lines truncate"


def translate_options(parser):
    files, batches = add_line_options(parser, "translated")
    text = "beginning of each answer, line by line; an empty line leaves it free"
    add_options(files, {"--prefix FILE": text})
    add_language_options(files)
    add_glossary_options(files)
    add_long_lines(batches, ("split", "truncate", "error"), "split; error with --n-best")
    add_engine_option(batches)
    add_shortlist_option(batches)
    add_constraint_options(parser)


def run_translate(arguments):
    inputs = [arguments.input or "-", arguments.prefix, arguments.glossary, *arguments.model]
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
    translator = in_languages(translator, arguments)
    codes = translator.source_tokenizer.languages
    if total is not None and (arguments.long_lines == "error" or codes):
        for _ in _chunks(translator, arguments, prefixes):
            pass  # finds lines that are too long, or lack a code, before anything is translated
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
    tokenizer, num_lines = translator.source_tokenizer, 0
    limit = translator.max_source_length if arguments.long_lines == "error" else None
    for chunk in text_files.chunks(text_files.input_lines(arguments), arguments.chunk_size):
        if limit or tokenizer.languages:
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


def score_options(parser):
    files = parser.add_argument_group("model and files")
    add_model_option(files, required=True)
    inputs = {
        "--source FILE": "UTF-8 text, one sentence a line, .gz too",
        "--target FILE": "its translation, line by line",
    }
    add_options(files, inputs, required=True)
    add_options(files, {"--output FILE": "file of scores (default: standard output)"})
    add_language_options(files)
    add_options(parser, {"--per-token": "write the log-probability of each token too"})
    batches = parser.add_argument_group("batches")
    add_options(batches, {"--batch-size N=32": "number of sentences computed at once"})
    add_long_lines(batches, ("truncate", "error"), "error", "; target lines are never cut")


def run_score(arguments):
    names = (arguments.source, arguments.target)
    text_files.check_output(arguments.output, [*names, *arguments.model])
    sources = text_files.read_all_lines(arguments.source, "source")
    targets = text_files.read_all_lines(arguments.target, "target")
    text_files.require_same_length(zip(names, (sources, targets), strict=True))
    load_backend()
    from keras_transformer import Translator

    translator = in_languages(Translator.load(arguments.model), arguments)
    if arguments.long_lines != "truncate":
        text_files.check_lengths(
            translator.source_tokenizer,
            sources,
            translator.max_source_length,
            repr(arguments.source),
            advice=_SCORE_ADVICE,
        )
    if translator.model.config.max_length is not None:
        text_files.check_lengths(
            translator.target_tokenizer,
            targets,
            translator.model.config.max_length,
            repr(arguments.target),
            advice="shorten it and its source",
        )
    total_log_probability, total_tokens, num_scored = 0.0, 0, 0
    num_given = len(translator.target_tokenizer.beginning)  # of each translation but an empty one
    with (
        text_files.open_output(arguments.output) as output,
        ProgressBar("scoring", total=len(sources), unit="lines") as progress,
    ):
        for chunk in text_files.chunks(zip(sources, targets, strict=True), _CHUNK_SIZE):
            scores = translator.score(
                *map(list, zip(*chunk, strict=True)),
                batch_size=arguments.batch_size,
                progress=lambda done, _, before=num_scored: progress.update(before + done),
            )
            for score in scores:
                fields = [f"{score.log_probability:.6f}", str(score.num_tokens)]
                if arguments.per_token:
                    fields.append(" ".join(f"{x:.6f}" for x in score.token_log_probabilities))
                output.write("\t".join(fields) + "\n")
                total_log_probability += score.log_probability
                total_tokens += score.num_tokens - (num_given if score.num_tokens > 1 else 0)
            num_scored += len(chunk)
    perplexity = math.exp(-total_log_probability / total_tokens)
    say(
        f"{len(sources):,} lines, {total_tokens:,} tokens, "
        f"log-probability {total_log_probability:.2f}, perplexity {perplexity:.3f}"
    )


def shortlist_options(parser):
    options = {
        "--model DIR": "model directory, into which the shortlist is written",
        "--source FILE": "training text in the source language, .gz too",
        "--target FILE": "its translation, line by line",
    }
    add_options(parser, options, required=True)
    numbers = {
        "--candidates N=50": "number of candidates for each source subword",
        "--frequent N=100": "number of the most frequent target subwords, which are always allowed",
    }
    add_options(parser, numbers)


def run_shortlist(arguments):
    from keras_transformer.data import EncodedCorpus, ParallelTextCorpus

    corpus = ParallelTextCorpus(arguments.source, arguments.target)
    total = len(corpus)  # reads all lines, and raises if one is damaged or has no partner
    load_backend()
    from keras_transformer import Translator
    from keras_transformer.inference import Shortlist

    tokenizers = Translator.load(arguments.model).tokenizers
    with ProgressBar("encoding", total, unit="pairs") as progress:
        encoded = EncodedCorpus.from_corpus(corpus, *tokenizers, progress=progress.update)
    say(f"Learning the translations of {tokenizers.source.vocab_size:,} source subwords.")
    shortlist = Shortlist.learn(encoded, tokenizers, arguments.candidates, arguments.frequent)
    say(f"wrote {shortlist.save(arguments.model)}")
