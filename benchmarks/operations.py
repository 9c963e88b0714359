"""Where the time of translation goes: the operations of TensorFlow by kind.

Usage: python benchmarks/operations.py [--form float32 int8] [--batch 1 32] [--beam 1 4]
                                       [--imitate avx2]

A SavedModel of `base` with random weights, as in decoding.py. TensorFlow's profiler adds the times
of the operations of all threads, of which there are two; the rest is the work of starting
operations, those that are too short to be listed, and waiting. Prints a table of
docs/benchmarks.md.
"""

import argparse
import collections
import datetime
import json
import sys
import tempfile
import time
from pathlib import Path

from alternate import hardware, imitate, run_program

PEERS = Path(__file__).resolve().parent / "peers"
sys.path.insert(0, str(PEERS))
# The first kind whose words are in the name of an operation.
KINDS = {
    "products of states and matrices": ("QuantizedMatMul", "MklMatMul", "NativeFusedMatMul"),
    "attention": ("BatchMatMul",),
    "copies of caches": ("Concat", "Gather", "Split", "Slice"),
    "softmax, largest logits, transposes": ("Softmax", "TopK", "Max", "Transpose"),
    "norms, sums, biases, rounding": (
        *("Add", "Sub", "Mul", "Mean", "Square", "Rsqrt", "Div", "Relu", "Bias"),
        *("Abs", "Round", "Cast", "Bitcast", "Select", "Sum"),
    ),
}


def measure(directory: str, batch: int) -> dict:
    """Returns the seconds of a call, and those of each kind of operation."""
    import tensorflow as tf
    import tensorflow_text  # noqa: F401
    from decode_setting import THREADS, source_ids
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(THREADS)
    translate = tf.saved_model.load(directory).signatures["serving_default"]
    text = tf.constant([" ".join(f"w{number}" for number in row) for row in source_ids(batch)])
    for _ in range(3):
        start = time.perf_counter()
        translate(text=text)["translation"].numpy()
        seconds = time.perf_counter() - start
    with tempfile.TemporaryDirectory() as folder:
        with tf.profiler.experimental.Profile(folder):
            translate(text=text)["translation"].numpy()
        [path] = Path(folder).rglob("*.xplane.pb")
        space = xplane_pb2.XSpace.FromString(path.read_bytes())
    found = collections.Counter()
    for plane in space.planes:
        names = {number: metadata.name for number, metadata in plane.event_metadata.items()}
        for event in (event for line in plane.lines for event in line.events):
            name, _, operation = names[event.metadata_id].rpartition(":")
            kinds = (kind for kind, words in KINDS.items() if any(w in operation for w in words))
            if name and (kind := next(kinds, None)):
                found[kind] += event.duration_ps / 1e12
    return {"seconds": seconds, **found}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--form", nargs="+", default=["float32", "int8"])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 32], help="default: 1 32")
    parser.add_argument("--beam", type=int, nargs="+", default=[1, 4], help="default: 1 4")
    parser.add_argument("--imitate", choices=["avx2"], help="a processor without AVX-512")
    parser.add_argument("--one", help=argparse.SUPPRESS)  # the program that measures one model
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.one, arguments.batch[0])))
        return
    print(f"{datetime.date.today()}, {hardware()}, limited to {arguments.imitate or 'nothing'}\n")
    columns = {}
    with tempfile.TemporaryDirectory() as folder:
        for form in arguments.form:
            for beam_size in arguments.beam:
                directory = f"{folder}/{form}-{beam_size}"
                run_program([str(PEERS / "decode_export.py"), directory, form, str(beam_size)])
                for batch in arguments.batch:
                    command = [__file__, "--one", directory, "--batch", str(batch)]
                    found = run_program(command, imitate(arguments.imitate))
                    columns[f"{form}, {batch}, beam {beam_size}"] = found
    print(f"| share of two threads' time | {' | '.join(columns)} |\n|---{'|---' * len(columns)}|")
    rows = {"seconds of a call": [f"{found['seconds']:.2f}" for found in columns.values()]}
    for kind in KINDS:
        both = ((found.get(kind, 0), 2 * found["seconds"]) for found in columns.values())
        rows[kind] = [f"{seconds / total:.0%}" for seconds, total in both]
    for name, cells in rows.items():
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
