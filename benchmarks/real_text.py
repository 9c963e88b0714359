"""Translation of a test set with a trained model: our library and CTranslate2, same weights.

pip install '.[ctranslate2]'
Usage: python benchmarks/real_text.py --model DIR --source FILE --reference FILE
                                      [--rounds 3] [--beam 1 4] [--threads 2] [--batch 64]
                                      [--shortlist]

Each program takes and returns text, and sorts and batches the lines itself. The programs run in
turn. A SavedModel gets all lines in one request, or 64 lines at a time (--batch) from several
clients. With --shortlist, our programs use the shortlist in the model directory. Prints a table of
docs/benchmarks.md.
"""

import argparse
import datetime
import tempfile
from pathlib import Path

from alternate import alternate, hardware, median, run_program

PEERS = Path(__file__).resolve().parent / "peers"


def programs(model: str, exports: Path, files: list[str], beam_size: str) -> dict[str, list[str]]:
    ours = [str(PEERS / "text_ours.py"), model, *files, beam_size]
    saved_model = str(PEERS / "text_saved_model.py")
    engine = [str(PEERS / "text_ctranslate2.py"), str(exports / "ctranslate2"), *files, beam_size]
    found = {"`translate`, float32": [*ours, "float32", "None"]}
    # CTranslate2's beam search stops like ours with `patience=1`; greedy search has no patience.
    for patience in ("None",) if beam_size == "1" else ("None", "1"):
        text = "bfloat16" if patience == "None" else "bfloat16, `patience=1`"
        directory = str(exports / f"{beam_size}-{patience}")
        found |= {
            f"`translate`, {text}": [*ours, "bfloat16", patience],
            f"SavedModel, {text}, one request": [saved_model, directory, *files, "1"],
            f"SavedModel, {text}, 4 clients": [saved_model, directory, *files, "4"],
        }
    return found | {
        "CTranslate2, float32": [*engine, "float32"],
        "CTranslate2, int8": [*engine, "int8"],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="directory of a trained translator")
    parser.add_argument("--source", required=True, help="text to translate, a line a sentence")
    parser.add_argument("--reference", required=True, help="its translation, for BLEU")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each program (default: 3)")
    parser.add_argument("--beam", nargs="+", default=["1", "4"], help="default: 1 4")
    parser.add_argument("--threads", type=int, default=2, help="of each program (default: 2)")
    text = "sentences in a batch of CTranslate2 and in a request of a client (default: 64)"
    parser.add_argument("--batch", type=int, default=64, help=text)
    parser.add_argument("--shortlist", action="store_true", help="ours use the model's shortlist")
    arguments = parser.parse_args()
    print(f"{datetime.date.today()}, {hardware()}, medians of {arguments.rounds} runs by turns")
    environment = {
        "BENCHMARK_THREADS": str(arguments.threads),
        "BENCHMARK_BATCH": str(arguments.batch),
        "BENCHMARK_SHORTLIST": str(int(arguments.shortlist)),
    }
    export = [str(PEERS / "text_export.py"), arguments.model]
    with tempfile.TemporaryDirectory() as folder:
        run_program([*export, f"{folder}/ctranslate2", "ctranslate2", "1", "None"], environment)
        for beam_size in arguments.beam:
            for patience in ("None",) if beam_size == "1" else ("None", "1"):
                form = [f"{folder}/{beam_size}-{patience}", "bfloat16", beam_size, patience]
                run_program([*export, *form], environment)
            files = [arguments.source, arguments.reference]
            commands = programs(arguments.model, Path(folder), files, beam_size)
            print(f"\nBeam {beam_size}:\n")
            print("| | sentences/s | BLEU | first time, seconds | peak memory, MB |")
            print("|---|---|---|---|---|")
            for name, found in alternate(commands, arguments.rounds, environment).items():
                figures = [
                    f"{median(found, 'sentences_per_second'):,.0f}",
                    f"{median(found, 'bleu'):.2f}",
                    f"{median(found, 'first_call_seconds'):.1f}",
                    f"{median(found, 'peak_memory_mb'):,.0f}",
                ]
                print(f"| {name} | {' | '.join(figures)} |", flush=True)


if __name__ == "__main__":
    main()
