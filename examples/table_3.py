"""Trains the rows of the paper's Table 3, scaled to a CPU, and prints both tables side by side.

    python examples/table_3.py --data multi30k --output runs/table_3

A row is the paper's preset with half the layers and an eighth of the widths. All rows are trained
on Multi30k, English to German, for the same number of steps, with four seeds. Each core runs one
training at a time. After an interruption, the same command continues. It writes table.md,
table_3.png and a result.json for each training into the output folder.
"""

import argparse
import concurrent.futures
import dataclasses
import json
import math
import os
import queue
import statistics
import subprocess
import sys
from pathlib import Path

# The paper's perplexity and BLEU on the development set.
PAPER = {
    "base": (4.92, 25.8),
    "table3_a_h1": (5.29, 24.9),
    "table3_a_h4": (5.00, 25.5),
    "table3_a_h16": (4.91, 25.8),
    "table3_a_h32": (5.01, 25.4),
    "table3_b_dk16": (5.16, 25.1),
    "table3_b_dk32": (5.01, 25.4),
    "table3_c_n2": (6.11, 23.7),
    "table3_c_n4": (5.19, 25.3),
    "table3_c_n8": (4.88, 25.5),
    "table3_c_d256": (5.75, 24.5),
    "table3_c_d1024": (4.66, 26.0),
    "table3_c_ff1024": (5.12, 25.4),
    "table3_c_ff4096": (4.75, 26.2),
    "table3_d_dropout00": (5.77, 24.6),
    "table3_d_dropout02": (4.95, 25.5),
    "table3_d_smoothing00": (4.67, 25.3),
    "table3_d_smoothing02": (5.47, 25.7),
    "table3_e": (4.92, 25.7),
}
# Largest effects on perplexity and BLEU in the paper that count as none.
PAPER_TIES = (0.03, 0.1)
MEASURES = ("perplexity", "BLEU")
RECIPE = {"tokens_per_batch": 2048, "warmup_steps": 1500, "max_length": 128}
VOCAB_SIZE = 4000
VOCABULARY = "vocabulary.model"


def scaled(row):
    """Returns the config and recipe of a row: half the layers, an eighth of the widths."""
    from keras_transformer import TransformerConfig, get_preset

    preset = get_preset(row)
    config = TransformerConfig(VOCAB_SIZE, **preset.config)
    divisors = {
        "num_encoder_layers": 2,
        "num_decoder_layers": 2,
        "d_model": 8,
        "intermediate_dim": 8,
    }
    if config.key_dim:
        divisors["key_dim"] = 8
    sizes = {name: getattr(config, name) // divisor for name, divisor in divisors.items()}
    recipe = dataclasses.replace(preset.recipe, average_checkpoints=1, **RECIPE)
    return dataclasses.replace(config, **sizes), recipe


def train_row(row, seed, steps, data, output):
    """Trains one row with one seed; writes result.json when it is done."""
    from keras_transformer.data import ParallelTextCorpus, load_tokenizer
    from keras_transformer.evaluation import corpus_bleu
    from keras_transformer.training import TrainingSettings, train

    directory = output / f"{row}-{seed}"
    config, recipe = scaled(row)
    corpora = [
        ParallelTextCorpus(data / f"{part}.en.gz", data / f"{part}.de.gz")
        for part in ("train", "val")
    ]
    settings = TrainingSettings(
        model=config.to_dict(),
        recipe=recipe.to_dict(),
        max_steps=steps,
        checkpoint_every=500,
        evaluate_every=steps,
        task_settings={"bleu_every": 0},
        select_best=False,  # Section 6.2: the last checkpoint, without averages.
        seed=seed,
    )
    tokenizer = load_tokenizer(output / VOCABULARY)
    result = train(directory, *corpora, settings, tokenizer, report=print)
    sources, references = zip(*corpora[1], strict=True)
    bleu = corpus_bleu(result.translator.translate(sources), references)
    found = {
        "perplexity": math.exp(result.valid_loss),
        "BLEU": bleu.score,
        "signature": bleu.signature,
        "parameters": result.translator.model.count_params(),
        "steps": result.steps,
        "epochs": result.epochs,
        "minutes": result.minutes,
    }
    (directory / "result.json").write_text(json.dumps(found, indent=2))


def learn_vocabulary(data, output):
    """Learns the vocabulary that all trainings share, unless it exists."""
    from keras_transformer.data import ParallelTextCorpus, save_tokenizer, train_sentencepiece

    if not (output / VOCABULARY).exists():
        corpus = ParallelTextCorpus(data / "train.en.gz", data / "train.de.gz")
        lines = (line for pair in corpus for line in pair)
        output.mkdir(parents=True, exist_ok=True)
        save_tokenizer(train_sentencepiece(lines, VOCAB_SIZE), output / VOCABULARY)


def train_all(arguments):
    """Trains the rows and seeds that have fewer steps, each in a process on its own core."""
    runs = [(row, seed) for seed in range(1, arguments.seeds + 1) for row in arguments.rows]
    steps = {run: steps_of(arguments.output, *run) for run in runs}
    if max(steps.values()) > arguments.steps:
        raise SystemExit(f"{arguments.output} has results of more steps: choose another --output")
    waiting = [run for run in runs if steps[run] < arguments.steps]
    cores = queue.SimpleQueue()
    for core in sorted(os.sched_getaffinity(0))[: arguments.processes]:
        cores.put(core)

    def run_in_process(row, seed):
        core = cores.get()
        command = [sys.executable, __file__, "--data", arguments.data, "--output", arguments.output]
        command += ["--steps", str(arguments.steps), "--train", row, str(seed)]
        threads = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}
        with open(arguments.output / f"{row}-{seed}.log", "a") as log:
            status = subprocess.call(
                list(map(str, command)),
                stdout=log,
                stderr=log,
                env={**os.environ, **threads},
                preexec_fn=lambda: os.sched_setaffinity(0, {core}),
            )
        cores.put(core)
        if status:
            raise SystemExit(f"The training of {row}, seed {seed}, failed: see {log.name}")
        print(f"{row}, seed {seed}: {result_path(arguments.output, row, seed).read_text()}")

    with concurrent.futures.ThreadPoolExecutor(arguments.processes) as pool:
        try:
            for future in [pool.submit(run_in_process, *run) for run in waiting]:
                future.result()
        except BaseException:  # Ctrl-C too
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def result_path(output, row, seed):
    return output / f"{row}-{seed}" / "result.json"


def steps_of(output, row, seed):
    """Returns the number of steps of a finished training; 0 without one."""
    path = result_path(output, row, seed)
    return json.loads(path.read_text())["steps"] if path.exists() else 0


def read_results(output, rows, num_seeds):
    """Returns the results of all seeds by row."""
    return {
        row: [
            json.loads(result_path(output, row, seed).read_text())
            for seed in range(1, num_seeds + 1)
        ]
        for row in rows
    }


def standard_error(values):
    """Returns the standard error of the mean of the seeds."""
    return statistics.stdev(values) / math.sqrt(len(values))


def effects(results):
    """Returns the paper's effect, our effect, and our margin of error, by row and measure.

    An effect is the difference from base. Rows with the same seed see the same batches, and a seed
    shifts the figures of all rows alike. So rows are compared seed by seed: our effect is the mean
    difference over the seeds, and the margin is twice its standard error.
    """
    found = {}
    for row in results:
        found[row] = []
        for number, measure in enumerate(MEASURES):
            seeds = zip(results[row], results["base"], strict=True)
            ours = [run[measure] - base[measure] for run, base in seeds]
            paper = round(PAPER[row][number] - PAPER["base"][number], 2)
            found[row].append((paper, statistics.mean(ours), 2 * standard_error(ours)))
    return found


def verdict(paper, ours, margin, tie):
    """Returns in words whether our effect agrees with the paper's."""
    if abs(paper) <= tie:
        return "yes: none" if abs(ours) <= margin else "no: paper has none"
    answer = "yes" if paper * ours > 0 else "no"
    return answer if abs(ours) > margin else f"{answer}, within margin"


def print_table(results, file):
    """Prints the paper's table beside ours."""
    found = effects(results)
    signature = next(iter(results.values()))[0]["signature"]
    print(
        "| row | N | d_model | d_ff | h | d_k | dropout | smoothing | parameters "
        "| PPL, paper | PPL | agrees | BLEU, paper | BLEU | agrees |\n" + "|---" * 15 + "|",
        file=file,
    )
    for row, runs in results.items():
        config, recipe = scaled(row)
        cells = [
            row.removeprefix("table3_"),
            config.num_encoder_layers,
            config.d_model,
            config.intermediate_dim,
            config.num_heads,
            config.key_dim or config.d_model // config.num_heads,
            config.dropout,
            recipe.label_smoothing,
            f"{runs[0]['parameters']:,}",
        ]
        for number, measure in enumerate(MEASURES):
            values = [run[measure] for run in runs]
            agrees = "" if row == "base" else verdict(*found[row][number], PAPER_TIES[number])
            ours = f"{statistics.mean(values):.2f} ± {standard_error(values):.2f}"
            cells += [PAPER[row][number], ours, agrees]
        print(f"| {' | '.join(map(str, cells))} |", file=file)
    minutes = sum(run["minutes"] for runs in results.values() for run in runs)
    seeds, one = len(results["base"]), results["base"][0]
    print(
        f"\n{seeds} seeds, {one['steps']:,} steps ({one['epochs']:.1f} epochs) each, "
        f"{minutes:.0f} minutes of one core in all. BLEU: {signature}",
        file=file,
    )


def draw(results, path):
    """Plots the effects of all rows in the paper and in our results."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    rows = [row for row in results if row != "base"]
    found = effects(results)
    figure, panels = pyplot.subplots(1, 2, figsize=(10, 0.3 * len(rows) + 1.4), sharey=True)
    heights = range(len(rows))
    for number, (axes, measure) in enumerate(zip(panels, MEASURES, strict=True)):
        paper, ours, margin = zip(*(found[row][number] for row in rows), strict=True)
        axes.axvline(0, color="#888888", linewidth=1)
        axes.errorbar(
            ours, heights, xerr=margin, fmt="o", color="#1f5fa8", label="here, ± 2 standard errors"
        )
        axes.plot(paper, heights, "D", markerfacecolor="none", color="#c2571a", label="paper")
        axes.set_xlabel(f"{measure}, difference to base")
        axes.grid(axis="y", color="#eeeeee")
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
    panels[0].set_yticks(heights, [row.removeprefix("table3_") for row in rows])
    for axes in panels:
        axes.tick_params(axis="y", length=0)
    panels[0].invert_yaxis()
    panels[1].legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--data", type=Path, required=True, help="folder of train and val, .en.gz and .de.gz"
    )
    parser.add_argument("--output", type=Path, default=Path("runs/table_3"))
    parser.add_argument("--rows", nargs="+", choices=PAPER, default=list(PAPER), metavar="ROW")
    parser.add_argument("--seeds", type=int, default=4, help="2 or more")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--train", nargs=2, metavar=("ROW", "SEED"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.seeds < 2:
        parser.error("--seeds must be 2 or more")
    if "base" not in arguments.rows or len(arguments.rows) < 2:
        parser.error("--rows must be base and others")
    if arguments.train:
        row, seed = arguments.train
        return train_row(row, int(seed), arguments.steps, arguments.data, arguments.output)
    learn_vocabulary(arguments.data, arguments.output)
    train_all(arguments)
    results = read_results(arguments.output, arguments.rows, arguments.seeds)
    with open(arguments.output / "table.md", "w", encoding="utf-8") as file:
        print_table(results, file)
    print((arguments.output / "table.md").read_text("utf-8"))
    draw(results, arguments.output / "table_3.png")


if __name__ == "__main__":
    main()
