"""The cost of translation with our SavedModel by length of the answers and by batch size.

Usage: python benchmarks/decoding_scale.py [--rounds 2] [--precision bfloat16] [--beam 1]
                                           [--lengths 32 128 512] [--batches 1 4 16 64 256]

Uses the base model of benchmarks/decoding.py and sources of 32 tokens. The first table shows each
length of answers, for one sentence and for a batch of 32. The second table shows each batch size,
with answers of 32 tokens. Prints the figures of docs/benchmarks.md.
"""

import argparse
import datetime
import tempfile
from pathlib import Path

from alternate import alternate, hardware, median, run_program

PEERS = Path(__file__).resolve().parent / "peers"
SHORT = 32
LENGTH_BATCHES = (1, 32)


def export(folder: Path, precision: str, beam_size: int, length: int) -> None:
    command = [str(PEERS / "decode_export.py"), str(folder), precision, str(beam_size)]
    run_program(command, {"BENCHMARK_TARGET": str(length)})


def measure(folder: Path, batches: list[int], length: int, rounds: int) -> dict[int, list[dict]]:
    ours = str(PEERS / "decode_ours.py")
    programs = {batch: [ours, str(folder), str(batch)] for batch in batches}
    return alternate(programs, rounds, {"BENCHMARK_TARGET": str(length)})


def length_table(results: dict[int, dict[int, list[dict]]]) -> str:
    lines = ["| tokens of an answer | sentences | ms a step | cost of a token | peak memory, MB |"]
    lines.append("|---|---|---|---|---|")
    for batch in LENGTH_BATCHES:
        for length, found in results.items():
            step = _step(found[batch], length)
            cost = step / _step(results[SHORT][batch], SHORT)
            memory = median(found[batch], "peak_memory_mb")
            lines.append(f"| {length} | {batch} | {step:.1f} | {cost:.2f} x | {memory:,.0f} |")
    return "\n".join(lines)


def batch_table(results: dict[int, list[dict]]) -> str:
    lines = ["| sentences | tokens/s | peak memory, MB |", "|---|---|---|"]
    for batch, found in results.items():
        speed, memory = median(found, "tokens_per_second"), median(found, "peak_memory_mb")
        lines.append(f"| {batch} | {speed:,.0f} | {memory:,.0f} |")
    return "\n".join(lines)


def _step(found, length):
    return 1000 * median(found, "seconds") / length


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=2, help="runs of each (default: 2)")
    parser.add_argument("--precision", default="bfloat16", help="default: bfloat16")
    parser.add_argument("--beam", type=int, default=1, help="default: 1, which is greedy")
    parser.add_argument("--lengths", type=int, nargs="+", default=[SHORT, 128, 512])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 16, 64, 256])
    arguments = parser.parse_args()
    how = "greedy" if arguments.beam == 1 else f"beam {arguments.beam}"
    print(f"{datetime.date.today()}, {hardware()}, {arguments.precision}, {how}")
    with tempfile.TemporaryDirectory() as folder:
        by_length = {}
        for length in sorted({SHORT, *arguments.lengths}):
            model = Path(folder) / str(length)
            export(model, arguments.precision, arguments.beam, length)
            by_length[length] = measure(model, list(LENGTH_BATCHES), length, arguments.rounds)
        print(f"\n{length_table(by_length)}", flush=True)
        by_batch = measure(Path(folder) / str(SHORT), arguments.batches, SHORT, arguments.rounds)
        print(f"\n{batch_table(by_batch)}")


if __name__ == "__main__":
    main()
