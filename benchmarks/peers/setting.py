"""The training step of all peers: fixed shapes without padding, by default of the base model.

These environment variables change it: BENCHMARK_MODEL, tiny, base or big; BENCHMARK_BATCH, the
number of sentences; BENCHMARK_LENGTH, their tokens; BENCHMARK_VOCAB; and BENCHMARK_REPEAT, the
number of steps between two readings of the clock, which wait for the device.
"""

import json
import os
import resource
import statistics
import time

MODEL = os.environ.get("BENCHMARK_MODEL", "base")
LAYERS, D_MODEL, INTERMEDIATE, HEADS, DROPOUT = {
    "tiny": (4, 128, 256, 4, 0.1),
    "base": (6, 512, 2048, 8, 0.1),
    "big": (6, 1024, 4096, 16, 0.3),
}[MODEL]
VOCAB = int(os.environ.get("BENCHMARK_VOCAB", "32000"))
BATCH = int(os.environ.get("BENCHMARK_BATCH", "64"))
SOURCE = TARGET = int(os.environ.get("BENCHMARK_LENGTH", "32"))
SMOOTHING = 0.1
REPEAT = int(os.environ.get("BENCHMARK_REPEAT", "1"))
WARM_UP, STEPS = 3, 8


def step_operations() -> float:
    """Returns the floating-point operations of the matrix products of a step.

    A backward pass has twice those of the forward pass. Causal attention counts by half.
    """
    attention, feed_forward = D_MODEL**2, 2 * D_MODEL * INTERMEDIATE
    encoder = LAYERS * (4 * attention + feed_forward + 2 * SOURCE * D_MODEL)
    of_source = encoder + LAYERS * 2 * attention  # keys and values of the cross-attention
    in_decoder = 6 * attention + feed_forward + (TARGET + 2 * SOURCE) * D_MODEL
    of_target = LAYERS * in_decoder + VOCAB * D_MODEL
    return 6.0 * BATCH * (SOURCE * of_source + TARGET * of_target)


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
        "operations": step_operations(),
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        **more,
    }
    print(json.dumps(result))


def rate_of(product, wait, size: int = 8192) -> float:
    """Returns the operations per second of a product of two matrices of `size` x `size`.

    Args:
        product: function without arguments, which begins the product and returns it.
        wait: function that waits for a product.
    """
    seconds = []
    for _ in range(8):
        start = time.perf_counter()
        wait([product() for _ in range(10)][-1])
        seconds.append((time.perf_counter() - start) / 10)
    return 2 * size**3 / statistics.median(seconds[2:])


def time_steps(step, wait=lambda: None) -> list[float]:
    """Returns the seconds of each step, a mean over REPEAT steps.

    Args:
        step: function without arguments.
        wait: function that waits until all steps are done.
    """
    seconds = []
    for _ in range(WARM_UP + STEPS):
        start = time.perf_counter()
        for _ in range(REPEAT):
            step()
        wait()
        seconds.append((time.perf_counter() - start) / REPEAT)
    return seconds
