"""What every peer translates: the lines of a file, from text to text, on two threads."""

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
SHORTLIST = os.environ.get("BENCHMARK_SHORTLIST", "") == "1"
CALLS = 3


def lines_of(path: str) -> list[str]:
    """Returns the lines of a text file, plain or `.gz`."""
    opened = gzip.open if path.endswith(".gz") else open
    with opened(path, "rt", encoding="utf-8") as file:
        return [line.strip("\n") for line in file]


def load_translator(model: str, dtype: str | None = None) -> Any:
    """Returns our translator, with the shortlist of its directory if the benchmark asks for it."""
    from keras_transformer import Translator
    from keras_transformer.inference import Shortlist

    translator = Translator.load(model, dtype=dtype)
    if SHORTLIST:
        translator.shortlist = Shortlist.load(model, translator.tokenizers)
    return translator


def make_search(beam_size: str, patience: str) -> Any:
    """Returns our search."""
    from keras_transformer.decoding import BeamSearch, GreedySearch

    if beam_size == "1":
        return GreedySearch()
    return BeamSearch(int(beam_size), patience=None if patience == "None" else float(patience))


def measure(translate: Callable[[list[str]], list[str]], source: str, reference: str) -> None:
    """Times translations of a whole file and prints the result: the median after the first.

    Args:
        translate: lines to lines.
        source: file.
        reference: file.
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
