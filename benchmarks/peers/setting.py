"""The training step of all peers: fixed shapes without padding, by default of the base model.

BENCHMARK_MODEL, base or big, and BENCHMARK_BATCH, the number of sentences, change the step.
"""

import json
import os
import resource
import statistics
import time

MODEL = os.environ.get("BENCHMARK_MODEL", "base")
LAYERS, D_MODEL, INTERMEDIATE, HEADS = {"base": (6, 512, 2048, 8), "big": (6, 1024, 4096, 16)}[
    MODEL
]
VOCAB = 32_000
BATCH, SOURCE, TARGET = int(os.environ.get("BENCHMARK_BATCH", "64")), 32, 32
DROPOUT, SMOOTHING = 0.1, 0.1
WARM_UP, STEPS = 3, 8


def report(seconds: list[float], **more) -> None:
    """Prints the result of a program: the median time of a step after the warm-up, and its memory.

    Args:
        seconds: time of each step.
        **more: further figures; `peak_memory_mb` replaces the peak memory of the process.
    """
    median = statistics.median(seconds[WARM_UP:])
    result = {
        "seconds": median,
        "tokens_per_second": BATCH * TARGET / median,
        "first_step_seconds": seconds[0],
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        **more,
    }
    print(json.dumps(result))


def time_steps(step) -> list[float]:
    """Returns the seconds of each step; `step()` must wait until the step is done."""
    seconds = []
    for _ in range(WARM_UP + STEPS):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    return seconds
