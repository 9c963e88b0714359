"""The same training on every backend: steps whose batch shape is new, and the others.

Usage: python benchmarks/backends.py [--steps 40] [--rounds 1] [--backends tensorflow jax torch]

Needs the other backends: pip install '.[jax,torch]'. Prints the table of docs/backends.md.
"""

import argparse
import datetime
from pathlib import Path

from alternate import hardware, median, run_program

PROGRAM = str(Path(__file__).resolve().parent / "peers/steps_of_backend.py")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=40, help="steps of each (default: 40)")
    parser.add_argument("--rounds", type=int, default=1, help="runs of each (default: 1)")
    parser.add_argument("--backends", nargs="+", default=["tensorflow", "jax", "torch"])
    parser.add_argument("--packed", type=int, default=64, metavar="WIDTH", help="default: 64")
    arguments = parser.parse_args()
    print(f"{datetime.date.today()}, {hardware()}, seconds; in brackets, of all cores together\n")
    print("| | batch shapes | a step with a new shape | with a known shape |\n|---|---|---|---|")
    for backend in arguments.backends:
        for packed in (None, arguments.packed):
            options = [] if packed is None else ["--packed", str(packed)]
            command = [PROGRAM, str(arguments.steps), *options]
            environment = {"KERAS_BACKEND": backend}
            runs = [run_program(command, environment) for _ in range(arguments.rounds)]
            cells = [
                f"{median(runs, kind):.2f} ({median(runs, f'{kind}_cpu'):.2f})"
                for kind in ("new", "known")
            ]
            name = backend if packed is None else f"{backend}, `--packed-width {packed}`"
            shapes = runs[0]["all"]
            print(f"| {name} | {shapes} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
