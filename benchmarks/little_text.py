"""BLEU of models that `train` makes from a few thousand pairs, with vocabularies of several sizes.

Usage: KERAS_TRANSFORMER_DATA=DIR python benchmarks/little_text.py multi30k|tatoeba
           [--pairs 5000] [--vocab-size 1000 4000] [--steps 2000] [OPTIONS of train...]

DIR has multi30k/train and val, `.en.gz` and `.de.gz`, or tatoeba/deu-eng.tsv.gz. The pairs, English
to German, are drawn at random. Of Tatoeba, each English sentence has one translation, and 1,000
sentences validate. Prints the BLEU of the validation text with greedy search after each validation:
a table of docs/troubleshooting.md. One training takes a quarter of an hour on one core.
"""

import argparse
import csv
import gzip
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path


def read_lines(path):
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return file.read().splitlines()


def multi30k(folder):
    """Returns the pairs to draw from and those that validate."""

    def read_pairs(name):
        sides = (read_lines(folder / f"{name}.{side}.gz") for side in ("en", "de"))
        return list(zip(*sides, strict=True))

    train = read_pairs("train")
    random.Random(1).shuffle(train)
    return train, read_pairs("val")


def tatoeba(folder):
    """Returns the pairs to draw from and those that validate, not the 1,500 between, for tests."""
    first: dict[str, str] = {}
    for line in read_lines(folder / "deu-eng.tsv.gz"):
        english, german = line.split("\t")[:2]
        first.setdefault(english, german)
    pairs = sorted(first.items())
    random.Random(2).shuffle(pairs)
    return pairs[2500:], pairs[:1000]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", choices=["multi30k", "tatoeba"])
    parser.add_argument("--pairs", type=int, default=5000, help="default: 5000")
    parser.add_argument("--vocab-size", type=int, nargs="+", default=[1000, 4000])
    parser.add_argument("--steps", type=int, default=2000, help="default: 2000")
    arguments, options = parser.parse_known_args()
    folder = Path(os.environ["KERAS_TRANSFORMER_DATA"]) / arguments.corpus
    train, valid = {"multi30k": multi30k, "tatoeba": tatoeba}[arguments.corpus](folder)
    with tempfile.TemporaryDirectory() as output:
        files = []
        for name, pairs in (("", train[: arguments.pairs]), ("valid-", valid)):
            for side, lines in zip(("source", "target"), zip(*pairs, strict=True), strict=True):
                path = Path(output, f"{name}{side}")
                path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
                files += [f"--{name}{side}", str(path)]
        command = [sys.executable, "-m", "keras_transformer.cli", "train", *files, *options]
        for size in arguments.vocab_size:
            model = f"{output}/{size}"
            limits = ["--vocab-size", str(size), "--max-steps", str(arguments.steps)]
            run = [*command, "--output", model, *limits]
            subprocess.run(run, check=True, stdout=subprocess.DEVNULL)
            with open(f"{model}/history.csv", encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
            figures = [f"{float(row['valid_bleu']):.1f} ({row['step']})" for row in rows]
            print(f"{arguments.pairs:,} pairs, {size:,} subwords, BLEU (step): {' '.join(figures)}")


if __name__ == "__main__":
    main()
