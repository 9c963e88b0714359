"""Translation with base-size models: our SavedModel, KerasHub, transformers and CTranslate2.

pip install '.[oracles,ctranslate2]'
Usage: python benchmarks/decoding.py [--rounds 3] [--batch 1 32] [--beam 1 4] [--threads 2]
                                     [--without NAME ...] [--imitate avx2]

Sources have 32 tokens and answers exactly 32; the vocabulary is 32,000, and weights are random. The
SavedModel and CTranslate2 have the same weights. Our times include tokenization and detokenization;
the others take ids or tokens. Programs run in turn. Prints the figures of docs/benchmarks.md.
"""

import argparse
import datetime
import tempfile
from pathlib import Path

from alternate import alternate, hardware, imitate, median, run_program

PEERS = Path(__file__).resolve().parent / "peers"
OURS = tuple(f"keras_transformer, {form}" for form in ("float32", "bfloat16", "int8"))


def programs(models: Path, batch: int, beam_size: int) -> dict[str, list[str]]:
    ours = [PEERS / "decode_ours.py"]
    engine = [PEERS / "decode_ctranslate2.py", models / "ctranslate2", batch, beam_size]
    transformers = [PEERS / "decode_transformers.py", batch, beam_size]
    kerashub = [PEERS / "decode_kerashub.py", batch, beam_size]
    chosen = {
        OURS[0]: [*ours, models / f"float32-{beam_size}", batch],
        OURS[1]: [*ours, models / f"bfloat16-{beam_size}", batch],
        OURS[2]: [*ours, models / f"int8-{beam_size}", batch],
        "CTranslate2, float32": [*engine, "float32"],
        "CTranslate2, float32, workers": [*engine, "float32", "workers"],
        "CTranslate2, int8": [*engine, "int8"],
        "CTranslate2, int8, workers": [*engine, "int8", "workers"],
        "transformers, float32": [*transformers, "float32"],
        "transformers, bfloat16": [*transformers, "bfloat16"],
        "KerasHub, float32": [*kerashub, "float32"],
        "KerasHub, bfloat16": [*kerashub, "bfloat16"],
        "KerasHub, float32, XLA": [*kerashub, "float32", "xla"],
    }
    if batch == 1:  # One sentence cannot be divided among workers.
        chosen = {name: command for name, command in chosen.items() if "workers" not in name}
    return {name: [str(part) for part in command] for name, command in chosen.items()}


def export(models: Path, beam_sizes: list[int], threads: str) -> None:
    for beam_size in beam_sizes:
        for form in ("float32", "bfloat16", "int8"):
            arguments = [str(models / f"{form}-{beam_size}"), form, str(beam_size)]
            environment = {"BENCHMARK_THREADS": threads}
            run_program([str(PEERS / "decode_export.py"), *arguments], environment)
    run_program([str(PEERS / "decode_export.py"), str(models / "ctranslate2"), "ctranslate2", "1"])


def table(results) -> str:
    lines = [
        "| | tokens/s | float32 is faster by | bfloat16 by | int8 by | peak memory, MB |",
        "|---|---|---|---|---|---|",
    ]
    ours = {name: median(results[name], "tokens_per_second") for name in OURS if name in results}
    for name, found in results.items():
        speed = median(found, "tokens_per_second")
        ratios = [f"{ours[own] / speed:.2f} x" if own in ours else "" for own in OURS]
        memory = median(found, "peak_memory_mb")
        lines.append(f"| {name} | {speed:,.0f} | {' | '.join(ratios)} | {memory:,.0f} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="runs of each program (default: 3)")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 32], help="default: 1 32")
    parser.add_argument("--beam", type=int, nargs="+", default=[1, 4], help="default: 1 4")
    parser.add_argument("--threads", type=int, default=2, help="of each program (default: 2)")
    parser.add_argument("--without", nargs="*", default=[], help="leave out names with these words")
    parser.add_argument("--imitate", choices=["avx2"], help="a processor without AVX-512")
    arguments = parser.parse_args()
    print(f"{datetime.date.today()}, {hardware()}, medians of {arguments.rounds} runs by turns")
    if arguments.imitate:
        print(f"All programs are limited to {arguments.imitate}.")
        arguments.without.append("bfloat16")  # TensorFlow would crash.
    environment = {"BENCHMARK_THREADS": str(arguments.threads), **imitate(arguments.imitate)}
    with tempfile.TemporaryDirectory() as folder:
        export(Path(folder), arguments.beam, str(arguments.threads))
        for batch in arguments.batch:
            for beam_size in arguments.beam:
                chosen = programs(Path(folder), batch, beam_size)
                for word in arguments.without:
                    chosen = {name: run for name, run in chosen.items() if word not in name}
                results = alternate(chosen, arguments.rounds, environment)
                how = "greedy" if beam_size == 1 else f"beam {beam_size}"
                title = f"{batch} sentences, {how}, {arguments.threads} threads"
                print(f"\n{title}:\n\n{table(results)}", flush=True)


if __name__ == "__main__":
    main()
