"""`keras-transformer shortlist`: learns which subwords a model's translations may have."""

from keras_transformer.cli.arguments import add_options
from keras_transformer.cli.backend import load_backend
from keras_transformer.cli.progress import ProgressBar, say


def define_options(parser):
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


def run(arguments):
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
