"""The task of all decoding peers: by default 32 source and 32 answer tokens, on two threads."""

import json
import os
import resource
import statistics
import time

import numpy as np

VOCAB = 32_000
SOURCE_LENGTH = int(os.environ.get("BENCHMARK_SOURCE", "32"))
TARGET_LENGTH = int(os.environ.get("BENCHMARK_TARGET", "32"))
THREADS = int(os.environ.get("BENCHMARK_THREADS", "2"))
CALLS = 5


def source_ids(batch: int) -> np.ndarray:
    """Returns the sources without EOS, int `[batch, SOURCE_LENGTH - 1]`.

    Args:
        batch: number of sentences.
    """
    return np.random.default_rng(0).integers(5, VOCAB, (batch, SOURCE_LENGTH - 1))


def measure(translate, batch: int, **more) -> None:
    """Times calls and prints the result; `seconds` is the median of all calls but the first.

    Args:
        translate: function without arguments, which translates one batch.
        batch: number of sentences in the batch.
        **more: further figures.
    """
    seconds = []
    for _ in range(1 + CALLS):
        start = time.perf_counter()
        translate()
        seconds.append(time.perf_counter() - start)
    median = statistics.median(seconds[1:])
    result = {
        "seconds": median,
        "tokens_per_second": batch * TARGET_LENGTH / median,
        "first_call_seconds": seconds[0],
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "batch": batch,
        **more,
    }
    print(json.dumps(result), flush=True)
