"""An epoch of Multi30k English-German with the same model from our library and from KerasHub.

pip install '.[oracles]'
Usage: KERAS_TRANSFORMER_DATA=DIR python benchmarks/epoch.py [--rounds 2] [--before DIR]

DIR has multi30k/train.en.gz and multi30k/train.de.gz. Target tokens per second do not count
padding. Programs run in turn. Prints the figures of docs/benchmarks.md: our model and KerasHub's,
and our preset `tiny`. Ours also runs without streams and, with --before, in an older version.
"""

import argparse
import datetime
from pathlib import Path

from alternate import alternate, hardware, median

PEERS = Path(__file__).resolve().parent / "peers"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=2, help="runs of each program (default: 2)")
    parser.add_argument("--before", metavar="DIR", help="checkout of an older version")
    options = parser.parse_args()
    ours = [str(PEERS / "epoch_ours.py")]
    variants = {"": ["--streams", "2"], ", one stream": []}
    if options.before:
        variants[", older version"] = ["--library", options.before]
    programs = {f"keras_transformer{name}": ours + words for name, words in variants.items()}
    print(f"{datetime.date.today()}, {hardware()}, medians of {options.rounds} runs by turns\n")
    _compare({**programs, "KerasHub": [str(PEERS / "epoch_kerashub.py")]}, options.rounds)
    print("\nPreset tiny:\n")
    preset = ["--preset", "tiny"]
    _compare({name: command + preset for name, command in programs.items()}, options.rounds)


def _compare(programs, rounds):
    """Prints a table that compares programs with the first one, which is ours."""
    results = alternate(programs, rounds)
    ours = median(next(iter(results.values())), "tokens_per_second")
    print("| | seconds an epoch | target tokens/s | ours is faster by | peak memory, MB |")
    print("|---|---|---|---|---|")
    for name, found in results.items():
        speed = median(found, "tokens_per_second")
        print(
            f"| {name} | {median(found, 'epoch_seconds'):.0f} | {speed:,.0f} "
            f"| {ours / speed:.2f} x | {median(found, 'peak_memory_mb'):,.0f} |"
        )


if __name__ == "__main__":
    main()
