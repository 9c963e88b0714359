"""Training steps and decoding on one GPU in bfloat16: our library on JAX, torch and transformers.

pip install '.[jax,torch]' transformers, with GPU builds of JAX and torch
Usage: python benchmarks/gpu.py [--model base big] [--batch 392] [--length 64] [--vocab 37000]
                                [--sentences 1 32 256] [--beam 1 4] [--rounds 1]
                                [--xla-flags FLAGS]

A step has 392 x 64 source and 392 x 64 target tokens, about as many as the paper's. A search has 32
source and 32 answer tokens. The programs run in turn. Prints the figures of docs/benchmarks.md. To
try it on a CPU, use `--model tiny --batch 2 --vocab 500 --sentences 1`.
"""

import argparse
import datetime
import sys
from pathlib import Path

from alternate import alternate, hardware, median, results_of

PEERS = Path(__file__).resolve().parent / "peers"
STEPS = {
    "keras_transformer, JAX": [str(PEERS / "step_ours.py"), "mixed_bfloat16", "loss_model"],
    "torch.compile": [str(PEERS / "step_torch.py"), "bfloat16", "paper", "compile"],
}
SEARCHES = {"keras_transformer, JAX": "decode_on_jax.py", "transformers": "decode_transformers.py"}


def device() -> str:
    try:
        import torch
    except ImportError:
        return hardware()
    return torch.cuda.get_device_name() if torch.cuda.is_available() else hardware()


def steps_table(results) -> str:
    """Returns the table of a model's steps, below the highest matrix rate that was measured."""
    rate = max(run.get("matrix_rate", 0.0) for runs in results.values() for run in runs)
    lines = [
        f"A product of two matrices of 8,192 x 8,192: {rate / 1e12:,.0f} TFLOP/s",
        "",
        "| | seconds | target tokens/s | TFLOP/s | of the matrix rate | peak memory, GB "
        "| 300,000 steps, hours |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, found in results.items():
        seconds = median(found, "seconds")
        speed = median(found, "operations") / seconds
        share = f"{speed / rate:.0%}" if rate else ""
        lines.append(
            f"| {name} | {seconds:.4f} | {median(found, 'tokens_per_second'):,.0f} "
            f"| {speed / 1e12:,.0f} | {share} | {median(found, 'peak_memory_mb') / 1024:.1f} "
            f"| {seconds * 300_000 / 3600:.1f} |"
        )
    return "\n".join(lines)


def searches_table(sentences, beam_sizes, environment) -> str:
    numbers = [",".join(map(str, values)) for values in (sentences, beam_sizes)]
    seconds: dict[tuple[int, int], dict[str, float]] = {}
    for name, program in SEARCHES.items():
        try:
            runs = results_of([str(PEERS / program), *numbers, "bfloat16"], environment)
        except RuntimeError as error:
            print(f"  {error}", file=sys.stderr)
            continue
        print(f"  {name}: {runs}", file=sys.stderr)
        for run in runs:
            seconds.setdefault((run["batch"], run["beam_size"]), {})[name] = run["seconds"]
    names = list(SEARCHES)
    lines = [
        f"| sentences | beams | {', seconds | '.join(names)}, seconds | ours, sentences/s "
        "| ours is faster by |",
        "|---|---|---|---|---|---|",
    ]
    for (batch, beam_size), found in seconds.items():
        cells = [f"{found[name]:.4f}" if name in found else "" for name in names]
        ours, other = (found.get(name, float("nan")) for name in names)
        lines.append(
            f"| {batch} | {beam_size} | {' | '.join(cells)} | {batch / ours:,.0f} "
            f"| {other / ours:.1f} x |"
        )
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--model", nargs="*", choices=["tiny", "base", "big"], default=["base", "big"]
    )
    parser.add_argument("--batch", type=int, default=392, help="rows of a step (default: 392)")
    parser.add_argument("--length", type=int, default=64, help="tokens of a row (default: 64)")
    parser.add_argument("--vocab", type=int, default=37_000, help="subwords (default: 37000)")
    parser.add_argument("--sentences", type=int, nargs="*", default=[1, 32, 256])
    parser.add_argument("--beam", type=int, nargs="+", default=[1, 4], help="default: 1 4")
    parser.add_argument("--rounds", type=int, default=1, help="runs of each step (default: 1)")
    parser.add_argument("--without", nargs="*", default=[], help="leave out names with these words")
    parser.add_argument("--xla-flags", default="", help="XLA_FLAGS of our training step")
    arguments = parser.parse_args()
    print(f"{datetime.date.today()}, {device()}, XLA_FLAGS={arguments.xla_flags!r}", flush=True)
    environment = {"KERAS_BACKEND": "jax"}
    for model in arguments.model:
        more = {
            "XLA_FLAGS": arguments.xla_flags,
            "BENCHMARK_MODEL": model,
            "BENCHMARK_BATCH": str(arguments.batch),
            "BENCHMARK_LENGTH": str(arguments.length),
            "BENCHMARK_VOCAB": str(arguments.vocab),
            "BENCHMARK_REPEAT": "10",
        }
        steps = {
            name: command
            for name, command in STEPS.items()
            if not any(word in name for word in arguments.without)
        }
        results = alternate(steps, arguments.rounds, environment | more)
        print(f"\n{model}:\n\n{steps_table(results)}", flush=True)
    if arguments.sentences:
        table = searches_table(arguments.sentences, arguments.beam, environment)
        print(f"\nSearch, base:\n\n{table}", flush=True)


if __name__ == "__main__":
    main()
