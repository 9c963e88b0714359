"""The model and the text of the epoch benchmark: Multi30k, 3+3 layers of 256, 8,000 BPE pieces."""

import gzip
import json
import os
import resource
from pathlib import Path

LAYERS, D_MODEL, INTERMEDIATE, HEADS, VOCAB, DROPOUT = 3, 256, 1024, 8, 8_000, 0.2
SECONDS = 60.0
WARM_UP_STEPS = 60


def read_pairs() -> list[tuple[str, str]]:
    """The training pairs, English and German."""
    folder = Path(os.environ["KERAS_TRANSFORMER_DATA"]) / "multi30k"
    sides = [
        gzip.decompress((folder / f"train.{language}.gz").read_bytes()).decode().splitlines()
        for language in ("en", "de")
    ]
    return list(zip(*sides, strict=True))


def report(tokens: int, seconds: float, tokens_per_epoch: int) -> None:
    """Prints the result: target tokens a second without padding, and the seconds of an epoch."""
    result = {
        "tokens_per_second": tokens / seconds,
        "epoch_seconds": tokens_per_epoch * seconds / tokens,
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    print(json.dumps(result))
