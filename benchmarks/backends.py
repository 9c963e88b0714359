"""The same training on every backend: the time to the first step, and the speed afterwards.

Usage: python benchmarks/backends.py [--seconds 30] [--rounds 1] [--backends tensorflow jax torch]

Needs the other backends: pip install '.[jax,torch]'. Prints the table of docs/backends.md.
"""

import argparse
import datetime
from pathlib import Path

from alternate import hardware, median, run_program

PROGRAM = str(Path(__file__).resolve().parent / "peers/steps_of_backend.py")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=30, help="measured (default: 30)")
    parser.add_argument("--rounds", type=int, default=1, help="runs of each (default: 1)")
    parser.add_argument("--models", nargs="+", default=["tiny", "3+3"])
    parser.add_argument("--backends", nargs="+", default=["tensorflow", "jax", "torch"])
    arguments = parser.parse_args()
    runs: dict = {(m, b): [] for m in arguments.models for b in arguments.backends}
    for _ in range(arguments.rounds):
        for model, backend in runs:
            command = [PROGRAM, model, str(arguments.seconds)]
            # The commands set the second variable too.
            environment = {"KERAS_BACKEND": backend, "OMP_WAIT_POLICY": "PASSIVE"}
            runs[model, backend].append(run_program(command, environment))
    print(f"{datetime.date.today()}, {hardware()}, {arguments.rounds} rounds\n")
    print(
        "| model | backend | first step after, s | target tokens/s | of the first backend's | ",
        end="",
    )
    print("for each second of a core | of the first backend's |\n|---|---|---|---|---|---|---|")
    for (model, backend), found in runs.items():
        first = runs[model, arguments.backends[0]]
        cells = [f"{median(found, 'first'):.1f}"]
        for name in ("rate", "core_rate"):
            rate = median(found, name)
            cells += [f"{rate:,.0f}", f"{rate / median(first, name):.2f} x"]
        print(f"| {model} | {backend} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
