"""The step that every peer does: base size, fixed shapes, nothing but tokens."""

import json
import resource
import statistics
import time

LAYERS, D_MODEL, INTERMEDIATE, HEADS, VOCAB = 6, 512, 2048, 8, 32_000
BATCH, SOURCE, TARGET = 64, 32, 32
DROPOUT, SMOOTHING = 0.1, 0.1
WARM_UP, STEPS = 3, 8


def report(seconds: list[float], **more) -> None:
    """Prints the result of a program: the median step after the first ones, and its memory."""
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
    """Returns the seconds of each step; `step()` returns when it is done."""
    seconds = []
    for _ in range(WARM_UP + STEPS):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    return seconds
