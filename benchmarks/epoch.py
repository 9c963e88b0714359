"""An epoch of Multi30k English-German: ours and KerasHub's blocks, the same model, by turns.

pip install '.[oracles]'
Usage: KERAS_TRANSFORMER_DATA=DIR python benchmarks/epoch.py [--rounds 2]

DIR holds multi30k/train.en.gz and multi30k/train.de.gz. Target tokens a second: padding does not
count. Prints the table of docs/benchmarks.md.
"""

import argparse
import datetime
from pathlib import Path

from alternate import alternate, hardware, median

PEERS = Path(__file__).resolve().parent / "peers"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=2, help="runs of each program (default: 2)")
    rounds = parser.parse_args().rounds
    programs = {
        "keras_transformer": [str(PEERS / "epoch_ours.py")],
        "KerasHub": [str(PEERS / "epoch_kerashub.py")],
    }
    print(f"{datetime.date.today()}, {hardware()}, medians of {rounds} runs by turns\n")
    results = alternate(programs, rounds)
    ours = median(results["keras_transformer"], "tokens_per_second")
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
