"""Attention to long inputs (dense, by blocks, restricted), and recomputation of blocks.

Usage: python benchmarks/long_inputs.py [--rounds 3]

Each figure is of a forward and a backward pass in its own process. Memory is the increase of the
peak. The longest dense attention needs 16 GB. Prints the tables of docs/paper_measured.md.
"""

import argparse
import datetime
from pathlib import Path

from alternate import alternate, hardware, median

PEERS = Path(__file__).resolve().parent / "peers"
LENGTHS = (512, 1024, 2048, 4096, 8192, 16_384, 32_768)
WIDTH, WINDOW = 64, 64


def print_lengths(rounds):
    kinds = ("self-attention", "by blocks", "Keras, restricted", "restricted")
    print(f"One head of {WIDTH}, window {WINDOW}, one thread: seconds (MB)\n")
    print(f"| positions | dense | {' | '.join(kinds[1:])} |\n|---|---|---|---|---|")
    for length in LENGTHS:
        program = str(PEERS / "layer_of_table_1.py")
        shape = [str(length), str(WIDTH), str(WINDOW)]
        found = alternate({kind: [program, kind, *shape] for kind in kinds}, rounds)
        cells = ["-"] * len(kinds)
        for kind, results in found.items():
            seconds, megabytes = (median(results, key) for key in ("seconds", "megabytes"))
            cells[kinds.index(kind)] = f"{seconds:.3g} ({megabytes:,.0f})"
        print(f"| {length:,} | {' | '.join(cells)} |")


def print_recomputation(rounds):
    program = str(PEERS / "recomputation.py")
    found = alternate({name: [program, name] for name in ("kept", "recomputed")}, rounds)
    print("\n| 12 + 12 blocks of base width, 32 x 64 tokens | seconds a step | MB |\n|---|---|---|")
    for name, results in found.items():
        seconds, megabytes = (median(results, key) for key in ("seconds", "megabytes"))
        print(f"| {name} | {seconds:.2f} | {megabytes:,.0f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    print(f"{datetime.date.today()}, {hardware()}\n")
    print_lengths(rounds)
    print_recomputation(rounds)


if __name__ == "__main__":
    main()
