"""Time and memory of the input pipeline for a corpus of WMT's size.

Usage: python benchmarks/input_pipeline.py [--pairs 4500000] [--folder DIR]

Measures learning the vocabulary, preparing, loading, batching and the first step. The text is
random: words are drawn by their frequency in real lines ($KERAS_TRANSFORMER_DATA/wmt) or in the
number corpus, and one in thirty is joined with another word, which makes rare words. Lengths are
log-normal with a mean of 25 words. Each stage runs in its own process; its peak resident memory is
reported.
"""

import argparse
import gzip
import json
import os
import resource
import shutil
import sys
import tempfile
import time
from pathlib import Path

START = time.monotonic()

VOCAB_SIZE = 37_000
TOKENS_PER_BATCH = 25_000
NUM_BATCHES = 300
_MEAN_LOG_LENGTH, _LOG_SPREAD = 3.07, 0.55  # a mean of 25 words
_JOINED = 1 / 30
_PAIRS_AT_ONCE = 20_000


def real_lines() -> tuple[list[str], list[str]]:
    folder = Path(os.environ.get("KERAS_TRANSFORMER_DATA", "")) / "wmt"
    sides = []
    for names in (
        ("newstest2013.eng.gz", "sample-train-10k.src.gz"),
        ("newstest2013.deu.gz", "sample-train-10k.tgt.gz"),
    ):
        lines = []
        for name in names:
            if not (folder / name).is_file():
                from keras_transformer.quickstart import number_corpus

                train, _, _ = number_corpus(num_train=20_000, num_valid=0, num_test=0)
                return tuple(map(list, zip(*train, strict=True)))
            lines += gzip.decompress((folder / name).read_bytes()).decode("utf-8").split("\n")
        sides.append(lines)
    return tuple(sides)


def generate(folder: Path, pairs: int) -> dict:
    import numpy as np

    generator = np.random.default_rng(0)
    tables = [
        np.array([word for line in lines for word in line.split()], object)
        for lines in real_lines()
    ]

    def draw(table, lengths):
        words = table[generator.integers(0, len(table), int(lengths.sum()))]
        joined = np.flatnonzero(generator.random(len(words)) < _JOINED)
        words[joined] += table[generator.integers(0, len(table), len(joined))]
        words, start = words.tolist(), 0
        for length in lengths.tolist():
            yield " ".join(words[start : start + length]) + "\n"
            start += length

    for name, number in (("train", pairs), ("valid", 3000)):
        with (
            open(folder / f"{name}.en", "w", encoding="utf-8") as source,
            open(folder / f"{name}.de", "w", encoding="utf-8") as target,
        ):
            for start in range(0, number, _PAIRS_AT_ONCE):
                count = min(_PAIRS_AT_ONCE, number - start)
                lengths = generator.lognormal(_MEAN_LOG_LENGTH, _LOG_SPREAD, count)
                ratios = generator.lognormal(0.0, 0.15, count)
                for file, table, side in (
                    (source, tables[0], lengths),
                    (target, tables[1], lengths * ratios),
                ):
                    file.writelines(draw(table, np.clip(side, 1, 250).astype(int)))
    size = sum(path.stat().st_size for path in folder.glob("train.*"))
    return {"note": f"{size / 1e9:.2f} GB of text"}


def learn_vocabulary(folder: Path) -> dict:
    command("vocab", "--input", folder / "train.en", folder / "train.de", "--size", VOCAB_SIZE,
            "--output", folder / "vocab.model")  # fmt: skip
    return {"note": f"{VOCAB_SIZE:,} pieces"}


def prepare(folder: Path) -> dict:
    command("prepare", "--source", folder / "train.en", "--target", folder / "train.de",
            "--valid-source", folder / "valid.en", "--valid-target", folder / "valid.de",
            "--vocabulary", folder / "vocab.model", "--output", folder / "prepared")  # fmt: skip
    description = json.loads((folder / "prepared" / "prepared.json").read_text())["splits"]["train"]
    size = sum(path.stat().st_size for path in (folder / "prepared" / "train").iterdir())
    return {
        "note": f"{description['pairs']:,} pairs, {description['tokens']['target']:,} target ids, "
        f"{size / 1e9:.2f} GB"
    }


def feed(folder: Path) -> list[dict]:
    """Loads the corpus and makes the first batch and then many more, in one process."""
    from keras_transformer.data import PreparedCorpus, TokenBatches

    start = time.monotonic()
    encoded = PreparedCorpus.load(folder / "prepared").read("train")
    rows = [measured("load", start, note="after the imports")]
    start = time.monotonic()
    batches = TokenBatches(encoded, TOKENS_PER_BATCH, seed=1)
    iterator = iter(batches.dataset())
    next(iterator)
    rows.append(measured("first batch", start, note="batch shapes, plan and order of the epoch"))
    start = time.monotonic()
    sizes = [int((next(iterator)[1].numpy() != 0).sum()) for _ in range(NUM_BATCHES)]
    seconds = time.monotonic() - start
    rows.append(
        measured(
            f"{NUM_BATCHES} batches",
            start,
            note=f"{NUM_BATCHES / seconds:,.0f} batches/s, {sum(sizes) / seconds:,.0f} target "
            f"tokens/s, {batches.padding_share()['target']:.1%} padding",
        )
    )
    return rows


def first_step(folder: Path) -> list[dict]:
    """Trains one step of the tiny model, as `train --prepared` does."""
    import keras

    from keras_transformer.data import PreparedCorpus
    from keras_transformer.training import TrainingSettings, train

    rows = []
    prepared = PreparedCorpus.load(folder / "prepared")
    train(
        folder / "model",
        prepared.read("train"),
        settings=TrainingSettings(preset="tiny", max_steps=1),
        source_tokenizer=prepared.source_tokenizer,
        callbacks=[
            keras.callbacks.LambdaCallback(
                on_train_batch_begin=lambda batch, logs: rows.append(
                    measured("before the first step", START, note="from the start of Python")
                ),
                on_train_batch_end=lambda batch, logs: rows.append(
                    measured("first step", START, note="tracing and the `tiny` model included")
                ),
            )
        ],
    )
    return rows


def command(*arguments) -> None:
    from keras_transformer.cli import main

    if main([str(argument) for argument in arguments]):
        raise SystemExit(f"{arguments[0]} failed")


def measured(stage: str, start: float, note: str = "") -> dict:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6  # kilobytes on Linux
    return {"stage": stage, "seconds": time.monotonic() - start, "peak_gb": peak, "note": note}


STAGES = {
    "generate": generate,
    "vocabulary": learn_vocabulary,
    "prepare": prepare,
    "feed": feed,
    "first step": first_step,
}


def run_stage(stage: str, folder: Path, pairs: int) -> list[dict]:
    result = STAGES[stage](folder, *([pairs] if stage == "generate" else []))
    if isinstance(result, list):
        return result
    return [{**measured(stage, START), **result}]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=4_500_000, help="default: 4,500,000")
    parser.add_argument("--folder", type=Path, help="for the files, some 3 GB; removed afterwards")
    parser.add_argument("--stage", choices=STAGES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.stage:
        print(json.dumps(run_stage(arguments.stage, arguments.folder, arguments.pairs)))
        return
    from alternate import hardware, run_program

    folder = Path(tempfile.mkdtemp(prefix="input-pipeline-", dir=arguments.folder))
    print(f"{arguments.pairs:,} pairs, {hardware()}\n")
    print("| stage | seconds | peak memory, GB | |\n|---|---|---|---|", flush=True)
    try:
        for stage in STAGES:
            program = [__file__, "--stage", stage, "--folder", str(folder)]
            for row in run_program([*program, "--pairs", str(arguments.pairs)], timeout=7200):
                print(
                    f"| {row['stage']} | {row['seconds']:,.1f} | {row['peak_gb']:.2f} "
                    f"| {row['note']} |",
                    flush=True,
                )
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main())
