"""A shortlist's speed-up, for one sentence and for many at once, with small and large models.

Usage: python benchmarks/shortlist.py --source FILE --target FILE --text FILE [--vocab-size 32000]
                                      [--presets tiny base] [--beam 1 4] [--rounds 5]

Learns a vocabulary and a shortlist from the text in --source and --target, a line a sentence. The
models have random weights. Each is exported in bfloat16 with and without the shortlist, and
translates lines of --text: 8 lines one at a time, and 32 lines in one request. No answer ends
before its maximum length, 4 subwords more than the source has. The exports take turns, on two
threads. Prints a table of docs/benchmarks.md.
"""

import argparse
import datetime
import statistics
import tempfile
import time

import keras
import tensorflow as tf
from alternate import hardware

from keras_transformer import Transformer, Translator
from keras_transformer.data import EncodedCorpus, ParallelTextCorpus, train_sentencepiece
from keras_transformer.data.corpora import open_text
from keras_transformer.data.tokenizer import EOS_ID
from keras_transformer.data.tokenizer_pair import TokenizerPair
from keras_transformer.decoding import BeamSearch, GreedySearch
from keras_transformer.export import export_saved_model
from keras_transformer.inference import Shortlist

THREADS = 2


def make_translator(preset, tokenizer):
    model = Transformer.from_preset(preset, vocab_size=tokenizer.vocab_size)
    [embeddings] = model.target_embedding.get_weights()
    embeddings[EOS_ID] = 0.0  # A logit of 0 is far below the largest of many random logits.
    model.target_embedding.set_weights([embeddings])
    return Translator(model, tokenizer, extra_length=4)


def exports_of(translator, shortlist, search, folder):
    """Returns functions that answer a request, without and with the shortlist."""
    found = []
    for number, used in enumerate((None, shortlist)):
        translator.shortlist = used
        path = f"{folder}/{translator.model.name}-{search.width}-{number}"
        export_saved_model(translator, path, search, dtype="bfloat16", num_streams=THREADS)
        found.append(tf.saved_model.load(path).signatures["serving_default"])
    return found


def sentences_per_second(serve, requests):
    start = time.perf_counter()
    for lines in requests:
        serve(text=tf.constant(lines))["translation"].numpy()
    return sum(map(len, requests)) / (time.perf_counter() - start)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", required=True, help="training text")
    parser.add_argument("--target", required=True, help="its translation")
    parser.add_argument("--text", required=True, help="sentences to translate")
    parser.add_argument("--vocab-size", type=int, default=32_000, help="default: 32000")
    parser.add_argument("--presets", nargs="+", default=["tiny", "base"])
    parser.add_argument("--beam", type=int, nargs="+", default=[1, 4], help="default: 1 4")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each (default: 5)")
    options = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(THREADS)
    keras.utils.set_random_seed(0)
    corpus = ParallelTextCorpus(options.source, options.target)
    lines = (line for path in (options.source, options.target) for line in open_text(path))
    tokenizer = train_sentencepiece(lines, options.vocab_size, allow_fewer=True)
    tokenizers = TokenizerPair(tokenizer)
    encoded = EncodedCorpus.from_corpus(corpus, tokenizer, tokenizer)
    shortlist = Shortlist.learn(encoded, tokenizers)
    text = list(open_text(options.text))[:32]
    ids = [tokenizer.encode(line) for line in text]
    columns = [shortlist.token_ids(some) for some in (ids[:1], ids)]
    sizes = [len(some) if some is not None else tokenizer.vocab_size for some in columns]
    print(
        f"{datetime.date.today()}, {hardware()}, vocabulary of {tokenizer.vocab_size:,}, medians "
        f"of {options.rounds} runs by turns, sentences per second. The shortlist of the first "
        f"sentence has {sizes[0]:,} subwords, that of 32 sentences {sizes[1]:,}.\n"
    )
    print("| | sentences | search | whole vocabulary | shortlist | faster by |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for preset in options.presets:
            translator = make_translator(preset, tokenizer)
            for beam_size in options.beam:
                search = GreedySearch() if beam_size == 1 else BeamSearch(beam_size)
                exports = exports_of(translator, shortlist, search, folder)
                for count, requests in ((1, [[line] for line in text[:8]]), (32, [text])):
                    speeds = [[], []]
                    for _ in range(1 + options.rounds):
                        for serve, found in zip(exports, speeds, strict=True):
                            found.append(sentences_per_second(serve, requests))
                    # The first round compiles.
                    whole, short = (statistics.median(found[1:]) for found in speeds)
                    name = "greedy" if beam_size == 1 else f"beam {beam_size}"
                    row = f"`{preset}` | {count} | {name} | {whole:,.1f} | {short:,.1f}"
                    print(f"| {row} | {short / whole:.2f} x |", flush=True)


if __name__ == "__main__":
    main()
