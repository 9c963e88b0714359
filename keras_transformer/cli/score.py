"""`keras-transformer score`: scores given translations by their probability."""

import math

from keras_transformer.cli import text_files
from keras_transformer.cli.arguments import add_long_lines, add_model_option, add_options
from keras_transformer.cli.backend import load_backend
from keras_transformer.cli.progress import ProgressBar, say

_CHUNK_SIZE = 1024
_ADVICE = "split it and its target into sentences, or use --long-lines truncate"


def define_options(parser):
    files = parser.add_argument_group("model and files")
    add_model_option(files, required=True)
    inputs = {
        "--source FILE": "UTF-8 text, one sentence a line, .gz too",
        "--target FILE": "its translation, line by line",
    }
    add_options(files, inputs, required=True)
    add_options(files, {"--output FILE": "file of scores (default: standard output)"})
    add_options(parser, {"--per-token": "write the log-probability of each token too"})
    batches = parser.add_argument_group("batches")
    add_options(batches, {"--batch-size N=32": "number of sentences computed at once"})
    add_long_lines(batches, ("truncate", "error"), "error", "; target lines are never cut")


def run(arguments):
    names = (arguments.source, arguments.target)
    text_files.check_output(arguments.output, [*names, *arguments.model])
    sources = text_files.read_all_lines(arguments.source, "source")
    targets = text_files.read_all_lines(arguments.target, "target")
    text_files.require_same_length(zip(names, (sources, targets), strict=True))
    load_backend()
    from keras_transformer import Translator

    translator = Translator.load(arguments.model)
    if arguments.long_lines != "truncate":
        limits = translator.max_source_length, repr(arguments.source)
        text_files.check_lengths(translator.source_tokenizer, sources, *limits, advice=_ADVICE)
    if translator.model.config.max_length is not None:
        limits = translator.model.config.max_length, repr(arguments.target)
        advice = "shorten it and its source"
        text_files.check_lengths(translator.target_tokenizer, targets, *limits, advice=advice)
    total_log_probability, total_tokens, num_scored = 0.0, 0, 0
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
                total_tokens += score.num_tokens
            num_scored += len(chunk)
    perplexity = math.exp(-total_log_probability / total_tokens)
    say(
        f"{len(sources):,} lines, {total_tokens:,} tokens, "
        f"log-probability {total_log_probability:.2f}, perplexity {perplexity:.3f}"
    )
