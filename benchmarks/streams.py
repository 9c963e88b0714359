"""One request of many sentences: all cores per operation, or one stream of sentences per core.

Usage: python benchmarks/streams.py [--rounds 3] [--batches 1 8 32 128] [--beam 1 4]

Uses the base model of benchmarks/decoding.py in bfloat16, exported with one and with two streams.
Each export runs with one and with two threads per operation. Prints a table of docs/serving.md.
"""

import argparse
import datetime
import tempfile
from pathlib import Path

from alternate import alternate, hardware, median, run_program

PEERS = Path(__file__).resolve().parent / "peers"
# Number of streams of the export, and of threads per operation.
WAYS = ((1, 2), (1, 1), (2, 1), (2, 2))


def export(folder: Path, num_streams: int, beam_size: int) -> str:
    directory = str(folder / f"{num_streams}-{beam_size}")
    command = [str(PEERS / "decode_export.py"), directory, "bfloat16", str(beam_size)]
    run_program(command, {"BENCHMARK_THREADS": str(num_streams)})
    return directory


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="runs of each (default: 3)")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32, 128])
    parser.add_argument("--beam", type=int, nargs="+", default=[1, 4], help="default: 1 4")
    arguments = parser.parse_args()
    print(f"{datetime.date.today()}, {hardware()}, tokens/s, medians of {arguments.rounds} runs\n")
    ours = str(PEERS / "decode_ours.py")
    ways = [f"streams {streams}, threads of an operation {threads}" for streams, threads in WAYS]
    print(f"| | {' | '.join(ways)} |\n|---{'|---' * len(ways)}|")
    with tempfile.TemporaryDirectory() as folder:
        for beam_size in arguments.beam:
            exports = {n: export(Path(folder), n, beam_size) for n in {way[0] for way in WAYS}}
            for batch in arguments.batches:
                programs = {
                    way: [ours, exports[streams], str(batch), str(threads)]
                    for way, (streams, threads) in zip(ways, WAYS, strict=True)
                }
                found = alternate(programs, arguments.rounds)
                speeds = [f"{median(found[way], 'tokens_per_second'):,.0f}" for way in ways]
                print(f"| {batch} sentences, beam {beam_size} | {' | '.join(speeds)} |", flush=True)


if __name__ == "__main__":
    main()
