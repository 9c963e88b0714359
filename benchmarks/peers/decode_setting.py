"""What every peer decodes: sources of 32 tokens, answers of exactly 32, on two threads or one."""

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
        batch: sentences.
    """
    return np.random.default_rng(0).integers(5, VOCAB, (batch, SOURCE_LENGTH - 1))


def measure(translate, batch: int) -> None:
    """Times calls and prints the result: the median of those after the first.

    Args:
        translate: called without arguments, for one batch.
        batch: sentences in it.
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
    }
    print(json.dumps(result))
