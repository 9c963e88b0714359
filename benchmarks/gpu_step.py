"""A training step on one GPU in bfloat16: our library on JAX, and torch, plain and compiled.

pip install '.[jax,torch]', with GPU builds of both
Usage: python benchmarks/gpu_step.py [--model base big] [--batch 390] [--rounds 3]

A batch of 390 x 32 source and 390 x 32 target tokens is half of the paper's. The programs run in
turn. To try it on a CPU, use `--batch 16`.
"""

import argparse
import datetime
from pathlib import Path

from alternate import alternate, hardware, median

PEERS = Path(__file__).resolve().parent / "peers"
PROGRAMS = {
    "keras_transformer, JAX": [str(PEERS / "step_ours.py"), "mixed_bfloat16", "limit"],
    "torch": [str(PEERS / "step_torch.py"), "bfloat16"],
    "torch.compile": [str(PEERS / "step_torch.py"), "bfloat16", "compile"],
}


def device() -> str:
    try:
        import torch
    except ImportError:
        return hardware()
    return torch.cuda.get_device_name() if torch.cuda.is_available() else hardware()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", nargs="+", choices=["base", "big"], default=["base", "big"])
    parser.add_argument("--batch", type=int, default=390, help="sentences (default: 390)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each program (default: 3)")
    arguments = parser.parse_args()
    print(f"{datetime.date.today()}, {device()}, medians of {arguments.rounds} runs by turns")
    for model in arguments.model:
        environment = {
            "KERAS_BACKEND": "jax",
            "BENCHMARK_MODEL": model,
            "BENCHMARK_BATCH": str(arguments.batch),
        }
        results = alternate(PROGRAMS, arguments.rounds, environment)
        ours = results["keras_transformer, JAX"]
        products = median(ours, "product_seconds")
        print(f"\n{model}:\n")
        print(
            "| | seconds | target tokens/s | ours is faster by | peak memory, MB | of the limit |"
        )
        print("|---|---|---|---|---|---|")
        for name, found in results.items():
            seconds = median(found, "seconds")
            print(
                f"| {name} | {seconds:.4f} | {median(found, 'tokens_per_second'):,.0f} "
                f"| {seconds / median(ours, 'seconds'):.2f} x "
                f"| {median(found, 'peak_memory_mb'):,.0f} | {products / seconds:.0%} |"
            )
        print(f"| the matrix products alone | {products:.4f} | | | | 100% |", flush=True)


if __name__ == "__main__":
    main()
