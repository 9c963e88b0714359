"""`keras-transformer score`: scores given translations by their probability."""

import argparse
import math

from keras_transformer.cli.arguments import add_batch_options, add_model_option, add_options
from keras_transformer.cli.backend import load_backend
from keras_transformer.cli.line_by_line import add_long_lines, check_lengths
from keras_transformer.cli.progress import Progress, say
from keras_transformer.cli.text_files import (
    check_output,
    chunks,
    open_output,
    read_all_lines,
    require_same_length,
)

_CHUNK_SIZE = 1024
_ADVICE = "split it and its target into sentences, or use --long-lines truncate"


def define_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `score`."""
    files = parser.add_argument_group("model and files")
    add_model_option(files, required=True)
    inputs = {
        "--source FILE": "UTF-8 text, one sentence a line, .gz too",
        "--target FILE": "its translation, line by line",
    }
    add_options(files, inputs, required=True)
    add_options(files, {"--output FILE": "file of scores (default: standard output)"})
    add_options(parser, {"--per-token": "write the log-probability of each token too"})
    batches = add_batch_options(parser, searches=False)
    add_long_lines(batches, ("truncate", "error"), "error", "; target lines are never cut")


def run(arguments: argparse.Namespace) -> None:
    """Scores the pairs line by line."""
    check_output(arguments.output, [arguments.source, arguments.target, *arguments.model])
    sources = read_all_lines(arguments.source, "source")
    targets = read_all_lines(arguments.target, "target")
    require_same_length([(arguments.source, sources), (arguments.target, targets)])
    load_backend()
    from keras_transformer import Translator

    translator = Translator.load(arguments.model)
    if arguments.long_lines != "truncate":
        limit, name = translator.max_source_length, repr(arguments.source)
        check_lengths(translator.source_tokenizer, sources, limit, name, advice=_ADVICE)
    limit, name = translator.model.config.max_length, repr(arguments.target)
    if limit is not None:
        advice = "shorten it and its source"
        check_lengths(translator.target_tokenizer, targets, limit, name, advice=advice)
    total_log_probability, total_tokens = 0.0, 0
    with (
        open_output(arguments.output) as output,
        Progress("scoring", total=len(sources), unit="lines") as progress,
    ):
        for chunk in chunks(zip(sources, targets, strict=True), _CHUNK_SIZE):
            chunk_sources, chunk_targets = map(list, zip(*chunk, strict=True))
            num_before = progress.n
            for score in translator.score(
                chunk_sources,
                chunk_targets,
                batch_size=arguments.batch_size,
                progress=lambda done, _, before=num_before: progress.update(before + done),
            ):
                fields = [f"{score.log_probability:.6f}", str(score.num_tokens)]
                if arguments.per_token:
                    fields.append(" ".join(f"{x:.6f}" for x in score.token_log_probabilities))
                output.write("\t".join(fields) + "\n")
                total_log_probability += score.log_probability
                total_tokens += score.num_tokens
    perplexity = math.exp(-total_log_probability / total_tokens)
    say(
        f"{len(sources):,} lines, {total_tokens:,} tokens, "
        f"log-probability {total_log_probability:.2f}, perplexity {perplexity:.3f}"
    )
