"""One training step of a base-size model: our library, KerasHub's blocks and torch.

pip install '.[oracles]'
Usage: python benchmarks/train_step.py [--rounds 3] [--precision float32 bfloat16] [--xla]
                                       [--imitate avx2]

A step has 64 x 32 source and 64 x 32 target tokens, a vocabulary of 32,000, dropout 0.1 and Adam.
The programs run in turn. Prints the figures of docs/benchmarks.md.
"""

import argparse
import datetime
from pathlib import Path

from alternate import alternate, hardware, imitate, median

PEERS = Path(__file__).resolve().parent / "peers"


def programs(precision: str, xla: bool) -> dict[str, list[str]]:
    policy = "mixed_bfloat16" if precision == "bfloat16" else "float32"
    chosen = {
        "keras_transformer": [PEERS / "step_ours.py", policy, "limit"],
        "keras_transformer, `LossModel`": [PEERS / "step_ours.py", policy, "loss_model"],
        "KerasHub": [PEERS / "step_kerashub.py", policy],
        "torch": [PEERS / "step_torch.py", precision, "paper"],
    }
    if xla:
        chosen["keras_transformer, XLA"] = [PEERS / "step_ours.py", policy, "xla"]
        chosen["KerasHub, XLA"] = [PEERS / "step_kerashub.py", policy, "xla"]
    return {name: [str(part) for part in command] for name, command in chosen.items()}


def table(results) -> str:
    ours = median(results["keras_transformer"], "seconds")
    products = median(results["keras_transformer"], "product_seconds")
    lines = [
        "| | seconds | target tokens/s | ours is faster by | peak memory, MB | of the limit |",
        "|---|---|---|---|---|---|",
    ]
    for name, found in results.items():
        seconds = median(found, "seconds")
        lines.append(
            f"| {name} | {seconds:.3f} | {median(found, 'tokens_per_second'):,.0f} "
            f"| {seconds / ours:.2f} x | {median(found, 'peak_memory_mb'):,.0f} "
            f"| {products / seconds:.0%} |"
        )
    lines.append(f"| the matrix products alone | {products:.3f} | | | | 100% |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="runs of each program (default: 3)")
    parser.add_argument(
        "--precision",
        nargs="+",
        choices=["float32", "bfloat16"],
        default=["float32", "bfloat16"],
        help="default: both",
    )
    parser.add_argument("--xla", action="store_true", help="also with XLA")
    parser.add_argument("--imitate", choices=["avx2"], help="a processor without AVX-512")
    arguments = parser.parse_args()
    print(f"{datetime.date.today()}, {hardware()}, medians of {arguments.rounds} runs by turns")
    if arguments.imitate:
        print(f"All programs are limited to {arguments.imitate}.")
    for precision in arguments.precision:
        chosen = programs(precision, arguments.xla)
        results = alternate(chosen, arguments.rounds, imitate(arguments.imitate))
        print(f"\n{precision}:\n\n{table(results)}", flush=True)


if __name__ == "__main__":
    main()
