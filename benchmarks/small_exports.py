"""Size, BLEU and speed of the exports of a trained model, in float32 and quantized.

pip install '.[ctranslate2,litert,onnx]'
Usage: python benchmarks/small_exports.py --model DIR --source FILE --reference FILE
                                          [--lines N] [--rounds 3] [--threads 2] [--batch 32]

Exports the model to LiteRT, ONNX and CTranslate2, in float32 and quantized. The runtimes translate
the lines with greedy search, each in its own process and in turn; for LiteRT and ONNX, the search
is the loop of docs/runtimes.md. Prints a table of that page.
"""

import argparse
import datetime
import itertools
import tempfile
from pathlib import Path

from alternate import alternate, hardware, median

from keras_transformer import Translator
from keras_transformer.data.corpora import open_text
from keras_transformer.export import export

PEERS = Path(__file__).resolve().parent / "peers"
TITLES = {"litert": "LiteRT", "onnx": "ONNX", "ctranslate2": "CTranslate2"}
# The first of each format is what the others are compared with.
EXPORTS = [("litert", None), ("litert", "float16"), ("litert", "int8"), ("onnx", None)]
EXPORTS += [("onnx", "int8"), ("ctranslate2", None), ("ctranslate2", "int8")]


def size_of(directory: Path) -> tuple[int, int]:
    """Returns the bytes of the model and those of the tokenizers, which stay as they are."""
    sizes = {path.name: path.stat().st_size for path in directory.iterdir()}
    tokenizers = sum(size for name, size in sizes.items() if "tokenizer" in name)
    return sum(sizes.values()) - tokenizers, tokenizers


def first_lines(path: str, number: int | None, copy: Path) -> str:
    """Copies the first lines of a text, all if `number` is None, and returns the copy's path."""
    lines = itertools.islice(open_text(path), number)
    copy.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(copy)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="directory of a translator")
    parser.add_argument("--source", required=True, help="text to translate, a line a sentence")
    parser.add_argument("--reference", required=True, help="its translation, for BLEU")
    parser.add_argument("--lines", type=int, help="number of lines to translate (default: all)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each export (default: 3)")
    parser.add_argument("--threads", type=int, default=2, help="of each runtime (default: 2)")
    parser.add_argument("--batch", type=int, default=32, help="lines in a batch (default: 32)")
    arguments = parser.parse_args()
    environment = {
        "BENCHMARK_THREADS": str(arguments.threads),
        "BENCHMARK_BATCH": str(arguments.batch),
        "BENCHMARK_CALLS": "2",
    }
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        source = first_lines(arguments.source, arguments.lines, folder / "source")
        reference = first_lines(arguments.reference, arguments.lines, folder / "reference")
        translator = Translator.load(arguments.model)
        commands, sizes = {}, {}
        for form, quantization in EXPORTS:
            name = f"{TITLES[form]}, {quantization or 'float32'}"
            directory = export(translator, folder / name, form, quantization=quantization)
            sizes[name], tokenizers = size_of(directory)
            program = [str(PEERS / "text_runtime.py"), str(directory), form]
            commands[name] = [*program, source, reference]
        del translator
        results = alternate(commands, arguments.rounds, environment)
    print(
        f"{datetime.date.today()}, {hardware()}, medians of {arguments.rounds} runs by turns, "
        f"greedy search, batches of {arguments.batch}, {arguments.threads} threads. Sizes are "
        f"without the tokenizers' {tokenizers / 1e6:.2f} MB.\n"
    )
    print("| | size, MB | of float32 | BLEU | sentences/s | of float32 |")
    print("|---|---|---|---|---|---|")
    for name, found in results.items():
        base = f"{name.partition(',')[0]}, float32"
        speed, bleu = median(found, "sentences_per_second"), median(found, "bleu")
        figures = [f"{sizes[name] / 1e6:.2f}", f"{sizes[name] / sizes[base]:.3f}", f"{bleu:.2f}"]
        figures += [f"{speed:,.0f}"]
        if base in results:
            figures += [f"{speed / median(results[base], 'sentences_per_second'):.2f} x"]
        print(f"| {name} | {' | '.join(figures)} |")


if __name__ == "__main__":
    main()
