"""The task of all text peers: translate the lines of a file, on two threads by default."""

import gzip
import json
import os
import resource
import statistics
import time
from collections.abc import Callable
from typing import Any

import sacrebleu

THREADS = int(os.environ.get("BENCHMARK_THREADS", "2"))
BATCH = int(os.environ.get("BENCHMARK_BATCH", "64"))
# Whether beams are ranked as in Marian: log-probability divided by length.
BY_LENGTH = os.environ.get("BENCHMARK_BY_LENGTH", "") == "1"
SHORTLIST = os.environ.get("BENCHMARK_SHORTLIST", "") == "1"
CALLS = int(os.environ.get("BENCHMARK_CALLS", "5"))


def lines_of(path: str) -> list[str]:
    """Returns the lines of a text file, plain or `.gz`."""
    opened = gzip.open if path.endswith(".gz") else open
    with opened(path, "rt", encoding="utf-8") as file:
        return [line.strip("\n") for line in file]


def load_translator(model: str, dtype: str | None = None) -> Any:
    """Returns our translator, with the shortlist of its directory if BENCHMARK_SHORTLIST is 1."""
    from keras_transformer import Translator
    from keras_transformer.inference import Shortlist

    translator = Translator.load(model, dtype=dtype)
    if SHORTLIST:
        translator.shortlist = Shortlist.load(model, translator.tokenizers)
    return translator


def make_search(beam_size: str, patience: str) -> Any:
    """Returns our search: greedy for a beam size of 1."""
    from keras_transformer.decoding import BeamSearch, GreedySearch

    if beam_size == "1":
        return GreedySearch()
    options = {"length_penalty": 1.0, "length_normalization": "length"} if BY_LENGTH else {}
    patience = None if patience == "None" else float(patience)
    return BeamSearch(int(beam_size), patience=patience, **options)


def measure(translate: Callable[[list[str]], list[str]], source: str, reference: str) -> None:
    """Times translations of a file and prints the median of all but the first, and BLEU.

    Args:
        translate: function from lines to translated lines.
        source: path of the text to translate.
        reference: path of its reference translation.
    """
    lines, references = lines_of(source), lines_of(reference)
    seconds = []
    for _ in range(1 + CALLS):
        start = time.perf_counter()
        answers = translate(lines)
        seconds.append(time.perf_counter() - start)
    median = statistics.median(seconds[1:])
    result = {
        "seconds": median,
        "sentences_per_second": len(lines) / median,
        "first_call_seconds": seconds[0],
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "bleu": sacrebleu.corpus_bleu(answers, [references]).score,
    }
    print(json.dumps(result))
