"""The model and text of the epoch benchmark: 3+3 layers of width 256, Multi30k, 8,000 pieces."""

import gzip
import json
import os
import resource
import time
from pathlib import Path

import keras

LAYERS, D_MODEL, INTERMEDIATE, HEADS, VOCAB, DROPOUT = 3, 256, 1024, 8, 8_000, 0.2
SECONDS = 60.0
WARM_UP_STEPS = 60


def read_pairs() -> list[tuple[str, str]]:
    """Returns the training pairs, English and German."""
    folder = Path(os.environ["KERAS_TRANSFORMER_DATA"]) / "multi30k"
    sides = [
        gzip.decompress((folder / f"train.{language}.gz").read_bytes()).decode().splitlines()
        for language in ("en", "de")
    ]
    return list(zip(*sides, strict=True))


class Clock(keras.callbacks.Callback):
    """Counts the steps and times those after the warm-up, in which batch shapes are traced.

    Attributes:
        steps: number of all steps.
        seconds: time of the steps after `WARM_UP_STEPS`.
    """

    def __init__(self):
        super().__init__()
        self.steps = 0

    def on_train_batch_end(self, batch, logs=None):
        float(logs["loss"])  # waits for the step
        self.steps += 1
        if self.steps == WARM_UP_STEPS:
            self.start = time.perf_counter()
        elif self.steps > WARM_UP_STEPS:
            self.seconds = time.perf_counter() - self.start
            self.model.stop_training = self.seconds > SECONDS


def report(tokens: int, seconds: float, tokens_per_epoch: int) -> None:
    """Prints target tokens per second, without padding, and the seconds of an epoch."""
    result = {
        "tokens_per_second": tokens / seconds,
        "epoch_seconds": tokens_per_epoch * seconds / tokens,
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    print(json.dumps(result))
