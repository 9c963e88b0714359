"""Measures sections 3.2 and 3.5 of the paper: attention functions, heads and positions.

Usage: python benchmarks/section_3.py [--rounds 1] [--plot section_3.png]

Times are of a forward and a backward pass on one thread, in its own process. Each training uses one
thread, and two run at a time. The sequences are random. Prints the tables of
docs/paper_measured.md and plots the accuracy over the length for each kind of positions.
"""

import argparse
import concurrent.futures
import datetime
import sys
from pathlib import Path

import numpy as np
from alternate import alternate, hardware, median, run_program
from PIL import Image

from keras_transformer.evaluation.plots import GRID_COLOR, TEXT_COLOR, new_figure

PEERS = Path(__file__).resolve().parent / "peers"
LAYER, TRAINING = (str(PEERS / f"{name}_of_section_3.py") for name in ("attention", "training"))
FUNCTIONS = ("dot-product", "additive", "Keras, additive")
FUNCTION_LENGTHS = (64, 128, 256, 512)
KEY_DIMS, NUM_KEYS, NUM_QUERIES = (4, 16, 64, 256, 1024), 64, 1000
HEADS, HEAD_LENGTHS, D_MODEL, BATCH = (1, 2, 4, 8, 16), (64, 512), 512, 8
ATTENTION = {
    "scaled": "dot products / sqrt(d_k)",
    "unscaled": "dot products",
    "additive": "additive",
}
# kind -> color (distinct for color-blind readers) and marker
POSITIONS = {
    "sinusoidal": ("#0072b2", "o"),
    "learned": ("#d55e00", "s"),
    "relative": ("#009e73", "^"),
    "rotary": ("#cc79a7", "D"),
}
SEEDS, LONGEST = (0, 1), 30


def print_functions(rounds):
    print("| n | attention | seconds | / dot-product | memory, MB | / dot-product |")
    print("|---|---|---|---|---|---|")
    for length in FUNCTION_LENGTHS:
        shape = ["4", str(length), "8", "64"]  # batch, length, heads, d_k
        found = alternate({kind: [LAYER, kind, *shape] for kind in FUNCTIONS}, rounds)
        dot = found[FUNCTIONS[0]]
        for kind, results in found.items():
            cells = []
            for key, form in (("seconds", ",.4f"), ("megabytes", ",.0f")):
                value = median(results, key)
                cells += [f"{value:{form}}", f"{value / median(dot, key):.1f} x"]
            print(f"| {length} | {kind} | {' | '.join(cells)} |")


def softmax_gradients(scores):
    """Returns mean and median, over queries, of the Frobenius norm of `diag(p) - p p^T`."""
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    diagonal = weights[:, :, None] * np.eye(weights.shape[-1])
    jacobian = diagonal - weights[:, :, None] * weights[:, None, :]
    norms = np.linalg.norm(jacobian, axis=(1, 2))
    return f"{norms.mean():.4f} | {np.median(norms):.2g}"


def print_variances():
    """Prints footnote 4: products of long vectors push the softmax to where gradients are small."""
    header = "| d_k | variance of q . k | paper | with the factor | paper "
    for part in ("gradient", "with the factor"):
        header += f"| {part}, mean | median "
    print(f"\n{header}|\n|---|---|---|---|---|---|---|---|---|")
    generator = np.random.default_rng(0)
    for key_dim in KEY_DIMS:
        queries = generator.standard_normal((NUM_QUERIES, key_dim), "float32")
        keys = generator.standard_normal((NUM_QUERIES, NUM_KEYS, key_dim), "float32")
        plain = np.einsum("qd,qkd->qk", queries, keys)
        scaled = plain / np.sqrt(key_dim)
        variances = f"{plain.var():,.1f} | {key_dim} | {scaled.var():.3f} | 1"
        gradients = " | ".join(map(softmax_gradients, (plain, scaled)))
        print(f"| {key_dim} | {variances} | {gradients} |")


def trained(what, names):
    """Trains every model with every seed; returns the scores by name and seed."""
    runs = [(name, seed) for name in names for seed in SEEDS]

    def run(name, seed):
        found = run_program([TRAINING, what, name, str(seed)])
        print(f"  {what} {name} {seed}: {found['seconds']:.0f} s", file=sys.stderr)
        return {int(key): score for key, score in found["scores"].items()}

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return dict(zip(runs, pool.map(run, *zip(*runs, strict=True)), strict=True))


def print_attention_trainings():
    found = trained("attention", ATTENTION)
    steps = list(found["scaled", 0])
    header = " | ".join(f"loss, {number} steps" for number in steps)
    print(
        f"\n| scores, d_k = 256 | seed | {header} | accuracy |\n|---|---|{'---|' * len(steps)}---|"
    )
    for (name, seed), scores in found.items():
        losses = " | ".join(f"{loss:.3f}" for loss, _ in scores.values())
        accuracy = 100 * scores[steps[-1]][1]
        print(f"| {ATTENTION[name]} | {seed} | {losses} | {accuracy:.1f} % |")


def flops(length):
    """Returns the operations of a forward and a backward pass, for any number of heads."""
    projections = 4 * 2 * length * D_MODEL**2
    products = 2 * 2 * length**2 * D_MODEL  # Q K^T, and the weights times V
    return 3 * BATCH * (projections + products)


def print_heads(rounds):
    lengths = " | ".join(
        f"n = {length}, {flops(length) / 1e9:.1f} GFLOP, ms | h / one head"
        for length in HEAD_LENGTHS
    )
    print(f"\n| h | d_k | {lengths} |\n|---|---|---|---|---|---|")
    found = {}
    for length in HEAD_LENGTHS:
        shapes = {heads: (BATCH, length, heads, D_MODEL // heads) for heads in HEADS}
        programs = {key: [LAYER, "multi-head", *map(str, shape)] for key, shape in shapes.items()}
        found[length] = alternate(programs, rounds)
    for heads in HEADS:
        cells = []
        for length in HEAD_LENGTHS:
            seconds, one = (median(found[length][key], "seconds") for key in (heads, 1))
            cells += [f"{1000 * seconds:.1f}", f"{seconds / one:.2f} x"]
        print(f"| {heads} | {D_MODEL // heads} | {' | '.join(cells)} |")


def print_positions(found):
    lengths = list(next(iter(found.values())))
    header = " | ".join(map(str, lengths))
    print(f"\n| positions | seed | {header} |\n|---|---|{'---|' * len(lengths)}")
    for (name, seed), scores in found.items():
        cells = " | ".join(f"{100 * right:.1f} % ({loss:.2f})" for loss, right in scores.values())
        print(f"| {name} | {seed} | {cells} |")


def plot(found, path):
    figure = new_figure(5.6, 3.8)
    axes = figure.add_subplot()
    for (name, seed), scores in found.items():
        color, marker = POSITIONS[name]
        axes.plot(
            list(scores),
            [100 * right for _, right in scores.values()],
            color=color,
            marker=marker,
            markersize=5,
            linewidth=1.6,
            linestyle="-" if seed == SEEDS[0] else "--",
            label=f"{name}, seed {seed}",
        )
    lengths = list(scores)
    axes.plot(
        lengths,
        [100 * LONGEST / length for length in lengths],
        color=TEXT_COLOR,
        linewidth=1,
        label="only the first 30 right",
    )
    axes.axvline(LONGEST, color=TEXT_COLOR, linewidth=1, linestyle=":")
    axes.text(LONGEST + 1, 3, "longest in training", color=TEXT_COLOR, fontsize=8)
    axes.set_xlabel("length of the sequence, tokens", color=TEXT_COLOR)
    axes.set_ylabel("accuracy of the tokens, %", color=TEXT_COLOR)
    axes.set_ylim(0, 103)
    axes.set_xticks(lengths)
    axes.grid(color=GRID_COLOR, linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, labelcolor=TEXT_COLOR, fontsize=8)
    figure.savefig(path, dpi=150)
    # A palette makes the file four times smaller.
    Image.open(path).convert("RGB").quantize(64).save(path, optimize=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--plot", default="section_3.png")
    arguments = parser.parse_args()
    print(f"{datetime.date.today()}, {hardware()}, one thread\n", flush=True)
    print_functions(arguments.rounds)
    print_variances()
    print_attention_trainings()
    print_heads(arguments.rounds)
    found = trained("position", POSITIONS)
    print_positions(found)
    plot(found, arguments.plot)


if __name__ == "__main__":
    main()
