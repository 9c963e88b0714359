"""Measures Table 1 of the paper: time, memory and path length of the kinds of layers.

Usage: python benchmarks/table_1.py [--rounds 1] [--plot table_1.png]

Each figure is of a forward and a backward pass on one thread, in its own process. The exponent is
the slope of log(seconds) over log(size) between the two largest sizes; beside it is the exponent of
the paper's number of operations. Path lengths are found by gradients: an output depends on the
inputs whose gradient is not zero. Prints the tables of docs/paper_measured.md.
"""

import argparse
import datetime
import math
from pathlib import Path

from alternate import alternate, hardware, median

PEER = str(Path(__file__).resolve().parent / "peers" / "layer_of_table_1.py")
LENGTHS, WIDTHS, SIZES = (1024, 2048, 4096, 8192), (128, 256, 512, 1024), (16, 32, 64, 128)
# kind -> the paper's number of operations of a layer, for length n, width d and size k or r
OPERATIONS = {
    "self-attention": ("n^2 d", lambda n, d, size: n**2 * d),
    "LSTM": ("n d^2", lambda n, d, size: n * d**2),
    "GRU": ("n d^2", lambda n, d, size: n * d**2),
    "convolution": ("k n d^2", lambda n, d, size: size * n * d**2),
    "dilated convolution": ("k n d^2", lambda n, d, size: size * n * d**2),
    "separable convolution": ("k n d + n d^2", lambda n, d, size: size * n * d + n * d**2),
    "restricted": ("r n d", lambda n, d, size: size * n * d),
}


def sweeps():
    """Yields (kind, what grows, its sizes, size -> (n, d, k or r)).

    The fixed sizes are chosen so that attention takes longer than its projections, which the paper
    does not count.
    """
    for kind in OPERATIONS:
        is_attention, is_restricted = kind in ("self-attention", "restricted"), kind == "restricted"
        is_recurrent = kind in ("LSTM", "GRU")
        width = 64 if is_attention else 256
        # TensorFlow copies lists in a loop's gradient: beyond 1,024 steps, each step takes longer.
        lengths = (128, 256, 512, 1024) if is_recurrent else LENGTHS
        yield kind, "n", lengths, lambda n, d=width: (n, d, 16)
        length, size = (8192, 2048) if is_attention else (128 if is_recurrent else 1024, 16)
        # Wider: small matrices of a recurrent layer or a convolution would fit in the cache.
        factor = {"self-attention": 1, "restricted": 0.5}.get(kind, 2)
        widths = tuple(int(factor * width) for width in WIDTHS)
        yield kind, "d", widths, lambda d, n=length, size=size: (n, d, size)
        if is_restricted:
            yield kind, "r", tuple(8 * size for size in SIZES), lambda size: (8192, 64, size)
        elif "convolution" in kind:
            yield kind, "k", SIZES, lambda size: (4096, 128, size)


def exponent(sizes, values):
    return math.log(values[-1] / values[-2]) / math.log(sizes[-1] / sizes[-2])


def measured(rounds):
    """Returns rows of (kind, what grows, its sizes, seconds, megabytes, the paper's exponent)."""
    rows = []
    for kind, name, sizes, shape in sweeps():
        programs = {size: [PEER, kind, *map(str, shape(size))] for size in sizes}
        found = alternate(programs, rounds)
        seconds = [median(found[size], "seconds") for size in sizes]
        memory = [median(found[size], "megabytes") for size in sizes]
        operations = [OPERATIONS[kind][1](*shape(size)) for size in sizes]
        rows.append((kind, name, sizes, seconds, memory, exponent(sizes, operations)))
    return rows


def print_exponents(rows):
    print("| layer | paper, O(.) | grows | seconds | exponent | paper | memory, MB |")
    print("|---|---|---|---|---|---|---|")
    for kind, name, sizes, seconds, memory, expected in rows:
        times = ", ".join(f"{second:.3g}" for second in seconds)
        exponents = f"{exponent(sizes, seconds):.2f} | {expected:.2f}"
        grows = f"{name} = {', '.join(map(str, sizes))}"
        memory = ", ".join(f"{one:,.0f}" for one in memory)
        print(f"| {kind} | {OPERATIONS[kind][0]} | {grows} | {times} | {exponents} | {memory} |")


def path_length(make, length):
    """Returns the number of layers after which the first output depends on the last input."""
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

    figure, axes = plt.subplots(1, 3, figsize=(11, 4.2), sharey=True)
    panels = {"n": axes[0], "d": axes[1], "k": axes[2], "r": axes[2]}
    colors = dict(zip(OPERATIONS, plt.get_cmap("tab10").colors, strict=False))
    for kind, name, sizes, seconds, _, _ in rows:
        options = {"marker": "o", "color": colors[kind], "label": kind}
        panels[name].loglog(sizes, seconds, base=2, **options)
    for axis, label in zip(axes, ("length n", "width d", "kernel k or window r"), strict=True):
        axis.set_yscale("log", base=10)
        axis.xaxis.set_major_formatter("{x:,.0f}")
        axis.set_xlabel(label)
        axis.grid(color="#dddddd", linewidth=0.8)
        axis.set_axisbelow(True)
    axes[0].set_ylabel("seconds, forward and backward")
    handles = axes[0].get_legend_handles_labels()
    figure.legend(*handles, loc="lower center", ncols=len(colors), frameon=False, fontsize=9)
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    figure.savefig(path, dpi=100)


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
