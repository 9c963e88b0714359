"""Table 1 of the paper, measured: time, memory and path length of the kinds of layers.

Usage: python benchmarks/table_1.py [--rounds 1] [--plot table_1.png]

Each figure is a forward and a backward pass on one thread, in a process of its own. The exponent is
the slope of log(seconds) over log(size) between the two largest sizes. Path lengths are found by
gradients: an output is reached by the inputs with a gradient that is not zero. Prints the tables of
docs/benchmarks.md.
"""

import argparse
import datetime
import math
from pathlib import Path

from alternate import alternate, hardware, median

PEER = str(Path(__file__).resolve().parent / "peers" / "layer_of_table_1.py")
LENGTHS, WIDTHS, SIZES = (1024, 2048, 4096, 8192), (128, 256, 512, 1024), (16, 32, 64, 128)
# kind -> the paper's exponents of the length n, the width d, and the size k or r
KINDS = {
    "self-attention": (2, 1, None),
    "LSTM": (1, 2, None),
    "GRU": (1, 2, None),
    "convolution": (1, 2, 1),
    "dilated convolution": (1, 2, 1),
    "separable convolution": (1, 2, 0),
    "restricted": (1, 1, 1),
}


def sweeps():
    """Yields (kind, name of what grows, its sizes, the paper's exponent, size -> arguments)."""
    for kind, (length, width, size) in KINDS.items():
        narrow = 64 if kind in ("self-attention", "restricted") else 256
        lengths = LENGTHS[:3] if kind in ("LSTM", "GRU") else LENGTHS
        yield kind, "n", lengths, length, lambda n, narrow=narrow: (n, narrow, 16)
        # A length that is long beside the width, so that attention outweighs its projections.
        long = 4096 if kind == "self-attention" else 1024
        window = 512 if kind == "restricted" else 16
        yield kind, "d", WIDTHS, width, lambda d, long=long, size=window: (long, d, size)
        if size is not None:
            name = "r" if kind == "restricted" else "k"
            yield kind, name, SIZES, size, lambda s: (4096, 128, s)


def exponent(xs, ys):
    return math.log(ys[-1] / ys[-2]) / math.log(xs[-1] / xs[-2])


def measured(rounds):
    rows = []
    for kind, name, sizes, expected, shape in sweeps():
        programs = {size: [PEER, kind, *map(str, shape(size))] for size in sizes}
        found = alternate(programs, rounds)
        seconds = [median(found[size], "seconds") for size in sizes]
        memory = [median(found[size], "megabytes") for size in sizes]
        rows.append((kind, name, sizes, seconds, memory, expected))
    return rows


def print_exponents(rows):
    print("| layer | grows | seconds | exponent | paper | memory, MB |\n|---|---|---|---|---|---|")
    for kind, name, sizes, seconds, memory, expected in rows:
        times = ", ".join(f"{second:.3g}" for second in seconds)
        found = exponent(sizes, seconds)
        sizes = ", ".join(map(str, sizes))
        memory = ", ".join(f"{one:,.0f}" for one in memory)
        print(f"| {kind} | {name} = {sizes} | {times} | {found:.2f} | {expected} | {memory} |")


def path_length(make, length):
    """Returns the number of layers until the first output depends on the last input."""
    import numpy as np
    import tensorflow as tf

    layers, inputs = [], tf.random.normal((1, length, 8), seed=1)
    while len(layers) < length:
        layers.append(make(len(layers)))
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            states = inputs
            for layer in layers:
                states = layer(states)
            total = tf.reduce_sum(states[:, 0])
        if np.any(tape.gradient(total, inputs).numpy()[:, -1]):
            return len(layers)
    return None


# Three dilated convolutions of size 5 reach (5^3 - 1) / 2 = 62 positions.
def print_paths(length=63, size=5, window=5):
    import keras

    from keras_transformer.layers import MultiHeadAttention

    def attention(**options):
        layer = MultiHeadAttention(1, 8, **options)
        return lambda states: layer(states, states)

    def convolution(rate):
        return keras.layers.Conv1D(8, size, padding="same", dilation_rate=rate)

    half = (size - 1) // 2
    cases = {
        "self-attention": (lambda i: attention(), "O(1)", 1),
        "convolution": (lambda i: convolution(1), "O(n / k)", math.ceil((length - 1) / half)),
        "dilated convolution": (
            lambda i: convolution(size**i), "O(log_k(n))", round(math.log(2 * length - 1, size)),
        ),
        "restricted": (
            lambda i: attention(sliding_window=window), "O(n / r)",
            math.ceil((length - 1) / (window - 1)),
        ),
    }  # fmt: skip
    sizes = f"n = {length}, k = {size}, r = {2 * window - 1}"
    reach = "layers until the first output depends on the last input"
    print(f"\n| layer, {sizes} | {reach} | by the formula | paper |\n|---|---|---|---|")
    for name, (make, paper, expected) in cases.items():
        print(f"| {name} | {path_length(make, length)} | {expected} | {paper} |")
    print(f"\nA recurrent layer reaches in one layer, after n - 1 = {length - 1} steps in a row; "
          "the others need O(1) steps in a row.")  # fmt: skip


def plot(rows, path):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names = ("n", "d", "k", "r")
    figure, axes = plt.subplots(1, 3, figsize=(15, 4.5))
    for axis, shown in zip(axes, (names[:1], names[1:2], names[2:]), strict=True):
        for kind, name, sizes, seconds, _, _ in rows:
            if name in shown:
                axis.loglog(sizes, seconds, marker="o", label=kind)
        axis.set_xlabel(" or ".join(shown))
        axis.set_ylabel("seconds, forward and backward")
        axis.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--plot", default="table_1.png")
    arguments = parser.parse_args()
    print(f"{datetime.date.today()}, {hardware()}, one thread\n")
    rows = measured(arguments.rounds)
    print_exponents(rows)
    print_paths()
    plot(rows, arguments.plot)


if __name__ == "__main__":
    main()
