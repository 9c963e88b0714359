"""Load of the server: our models and CTranslate2's behind it, with joined requests and without.

pip install '.[ctranslate2]'
Usage: python benchmarks/serving.py --model DIR [--model base] [--rounds 3] [--seconds 10]
       python benchmarks/serving.py --model DIR --requests 20000

DIR is the model directory of the quickstart; `base` is the base model with random weights, whose
answers are as long as their sources. 1, 8 and 64 clients wait for the answer to one sentence before
they send the next; further 64 send 8 sentences in each request. Clients and server share the cores.
Programs run in turn. Prints the figures of docs/benchmarks.md. With --requests N, 64 clients send N
requests to our server, in several runs; prints the wrong answers and the memory of the server.
"""

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from alternate import alternate, hardware, median, run_program

PEERS = Path(__file__).resolve().parent / "peers"
LOADS = ("1", "8", "64", "64x8")
UNITS = ("sentences_per_second", "sentences_per_cpu_second")


def prepare(folder: Path, model: str, num_texts: int) -> Path:
    """Writes the model if it is `base`, and its texts; returns the model's folder."""
    directory = Path(model)
    if model == "base":
        directory = folder / "base"
        run_program([str(PEERS / "serving_base.py"), str(directory)])
    translate = [str(PEERS / "serving_texts.py"), str(directory), str(folder / "texts.json")]
    run_program([*translate, str(num_texts)])
    return directory


def ours(directory: Path, max_batch_size: int) -> list[str]:
    options = ["--port", "0", "--max-batch-size", str(max_batch_size), "--request-timeout", "600"]
    return ["-m", "keras_transformer.cli", "serve", f"model={directory}", *options]


def measure(folder: Path, model: str, rounds: int, seconds: float) -> None:
    num_texts = 320 if model == "base" else 1_000
    directory = prepare(folder, model, num_texts)
    export = ["-m", "keras_transformer.cli", "export", "--format", "ctranslate2"]
    export += ["--model", str(directory), "--output", str(folder / "ctranslate2")]
    subprocess.run([sys.executable, *export], check=True)
    config = json.loads((directory / "config.json").read_text("utf-8"))
    beam_size = str(config["search"].get("beam_size", 1))
    load = [str(PEERS / "serving_load.py"), str(folder / "texts.json"), str(seconds), "1000000"]
    load.append(",".join(LOADS))
    engine = [str(PEERS / "serving_ctranslate2.py"), str(folder / "ctranslate2"), "float32"]
    translate = [str(PEERS / "serving_texts.py"), str(directory), str(folder / "again.json")]
    programs = {
        "`translate`": [*translate, str(num_texts)],
        "ours, joined": [*load, *ours(directory, 64)],
        "ours, not joined": [*load, *ours(directory, 1)],
        "CTranslate2, joined": [*load, *engine, beam_size, "64"],
        "CTranslate2, not joined": [*load, *engine, beam_size, "1"],
    }
    results = alternate(programs, rounds)
    reference = [result["translate"] for result in results.pop("`translate`")]
    speeds = [median(reference, unit) for unit in UNITS]
    print(f"\n{model}, beam {beam_size}: `translate` has {speeds[0]:,.0f} sentences/s, ", end="")
    print(f"{speeds[1]:,.0f} for each second of a core\n")
    print("| | clients | sentences/s | for each second of a core | of `translate`'s ", end="")
    print("| 50th percentile, ms | 99th |\n|---|---|---|---|---|---|---|")
    for name, found in results.items():
        for index, load_name in enumerate(LOADS):
            rows = [result["loads"][index] for result in found]
            figures = [f"{median(rows, unit):,.0f}" for unit in UNITS]
            figures.append(f"{median(rows, UNITS[1]) / speeds[1]:.2f} x")
            figures += [f"{median(rows, rank):,.0f}" for rank in ("p50_ms", "p99_ms")]
            clients = load_name.replace("x8", ", 8 sentences each")
            print(f"| {name} | {clients} | {' | '.join(figures)} |", flush=True)


def soak(folder: Path, model: str, num_requests: int) -> None:
    directory = prepare(folder, model, 2_000)
    parts = 10
    load = [str(PEERS / "serving_load.py"), str(folder / "texts.json"), "100000"]
    load += [str(num_requests // parts), ",".join(["64"] * parts)]
    for part in run_program([*load, *ours(directory, 64)], timeout=36_000)["loads"]:
        print(part)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", action="append", required=True, help="DIR or base")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each program (default: 3)")
    parser.add_argument("--seconds", type=float, default=10, help="of each load (default: 10)")
    parser.add_argument("--requests", type=int, help="check N answers of our server")
    arguments = parser.parse_args()
    print(f"{datetime.date.today()}, {hardware()}, medians of {arguments.rounds} runs by turns")
    for model in arguments.model:
        with tempfile.TemporaryDirectory() as folder:
            if arguments.requests:
                soak(Path(folder), model, arguments.requests)
            else:
                measure(Path(folder), model, arguments.rounds, arguments.seconds)


if __name__ == "__main__":
    main()
