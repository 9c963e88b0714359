"""`keras-transformer shortlist`: learns which subwords a model's translations may have."""

import argparse
from typing import Any

from keras_transformer.cli.arguments import add_options
from keras_transformer.cli.backend import load_backend
from keras_transformer.cli.progress import Progress, say
from keras_transformer.errors import UserError


def define_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `shortlist`."""
    options = {
        "--model DIR": "model directory, into which the shortlist is written",
        "--source FILE": "training text in the source language, .gz too",
        "--target FILE": "its translation, line by line",
    }
    add_options(parser, options, required=True)
    default = "(default: %(default)s)"
    text = f"number of candidates for each source subword {default}"
    add_options(parser, {"--candidates N": text}, default=50)
    text = f"number of the most frequent target subwords, which are always allowed {default}"
    add_options(parser, {"--frequent N": text}, default=100)


def run(arguments: argparse.Namespace) -> None:
    """Learns the shortlist and writes it into the model directory."""
    from keras_transformer.data import EncodedCorpus, ParallelTextCorpus

    corpus = ParallelTextCorpus(arguments.source, arguments.target)
    total = len(corpus)  # reads all lines, and raises if one is damaged or has no partner
    load_backend()
    from keras_transformer import Translator
    from keras_transformer.inference import Shortlist

    tokenizers = Translator.load(arguments.model).tokenizers
    with Progress("encoding", total, unit="pairs") as progress:
        encoded = EncodedCorpus.from_corpus(corpus, *tokenizers, progress=progress.update)
    say(f"Learning the translations of {tokenizers.source.vocab_size:,} source subwords.")
    shortlist = Shortlist.learn(encoded, tokenizers, arguments.candidates, arguments.frequent)
    say(f"wrote {shortlist.save(arguments.model)}")


def add_shortlist_option(group: argparse._ActionsContainer) -> None:
    """Adds `--shortlist` to a command that translates."""
    text = (
        "choose answers from the subwords in the model's shortlist (`keras-transformer shortlist`)"
    )
    add_options(group, {"--shortlist": text})


def use_shortlist(pipeline: Any, arguments: argparse.Namespace) -> None:
    """Gives a pipeline the shortlist of its model directory if `--shortlist` asks for it."""
    if not getattr(arguments, "shortlist", False):
        return
    if not hasattr(pipeline, "shortlist"):
        rule = "--shortlist is for a model for translation"
        raise UserError(f"{rule}. Received: a model for {pipeline.task}")
    from keras_transformer.inference import Shortlist

    pipeline.shortlist = Shortlist.load(arguments.model[0], pipeline.tokenizers)
