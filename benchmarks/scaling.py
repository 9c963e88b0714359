"""Measures training steps of several processes, and simulates them here and on GPUs.

Usage: python benchmarks/scaling.py [--processes 2 4] [--rounds 3] [--tokens 8192]

Measures steps of `tiny` with Keras on JAX in one process, of all tokens and of half of them, and in
several processes of this machine, by turns; and the exchange of gradients by itself. The simulation
knows only the single process and the exchange, and has to foresee the steps of several processes.
Prints the tables of docs/scaling.md; with `--processes 0`, only those of GPUs.
"""

import argparse
import dataclasses
import datetime
import socket
import subprocess
import sys
from pathlib import Path

from alternate import alternate, hardware, median

PROGRAM = str(Path(__file__).resolve().parent / "peers/steps_of_processes.py")


@dataclasses.dataclass(frozen=True)
class Network:
    """Bytes a second between devices of a machine, and in and out of a machine; one-way delay."""

    inside: float
    outside: float
    delay: float
    per_machine: int  # devices


@dataclasses.dataclass(frozen=True)
class Training:
    """A step of one device: `fixed` seconds and `per_token`; the gradient's bytes and arrays."""

    fixed: float
    per_token: float
    num_bytes: float
    num_arrays: int
    batches_per_token: float = 0.0  # seconds in which the input pipeline makes a token


def exchange_seconds(training: Training, network: Network, devices: int) -> float:
    """A ring in each machine, then a ring over the machines, and back; arrays go one by one."""
    inside = min(devices, network.per_machine)
    machines = -(-devices // network.per_machine)
    seconds = 0.0
    for members, rate in ((inside, network.inside), (machines, network.outside)):
        if members > 1:
            rounds = 2 * (members - 1)
            seconds += rounds / members * training.num_bytes / rate
            seconds += rounds * network.delay * training.num_arrays
    return seconds


def simulate(training: Training, network: Network, devices: int, tokens: float, steps=50) -> float:
    """Returns the seconds of a step: devices compute and exchange, the pipeline works ahead.

    `tokens` are those of all devices. The process of each machine makes the rows of its devices.
    """
    exchange = exchange_seconds(training, network, devices)
    of_process = tokens * min(1, network.per_machine / devices)
    clock, batch_ready = 0.0, 0.0
    for _ in range(steps):
        batch_ready += of_process * training.batches_per_token
        start = max(clock, batch_ready)
        clock = start + training.fixed + training.per_token * tokens / devices + exchange
        batch_ready = max(batch_ready, clock - 16 * (clock / steps))  # batches that wait
    return clock / steps


def start_and_measure(arguments: list[str]) -> None:
    """Runs in a process of its own: starts the processes, and prints what process 0 prints."""
    number, tokens = arguments
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        address = f"localhost:{listener.getsockname()[1]}"
    commands = [
        [sys.executable, PROGRAM, address, number, str(n), tokens] for n in range(int(number))
    ]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands
    ]
    outputs = [process.communicate()[0] for process in processes]
    sys.stdout.write(outputs[0])


def compare(numbers: list[int], rounds: int, tokens: int) -> None:
    runs = [(1, tokens), (1, tokens // 2), *((number, tokens) for number in numbers)]
    programs = {run: [__file__, "--measure", *map(str, run)] for run in runs}
    found = alternate(programs, rounds, {"KERAS_BACKEND": "jax", "CUDA_VISIBLE_DEVICES": ""})
    step, half = (median(found[run], "step") for run in runs[:2])
    print(f"{datetime.date.today()}, {hardware()}, tiny, {tokens:,} tokens, {rounds} rounds\n")
    print("| processes | exchange alone, s | step, s | simulated, s | difference |")
    print("|---|---|---|---|---|")
    print(f"| 1 | | {step:.3f} | | |")
    for number in numbers:
        measured = median(found[number, tokens], "step")
        exchange = median(found[number, tokens], "exchange")
        # The processes share the cores: together they take the time of the whole batch, and each
        # pays the part that does not depend on the tokens.
        fixed = max(2 * half - step, 0.0)
        training = Training(number * fixed, number * (step - fixed) / tokens, 0.0, 0)
        network = Network(1.0, 1.0, 0.0, number)
        simulated = simulate(training, network, number, tokens) + exchange
        difference = f"{simulated / measured - 1:+.0%}"
        print(f"| {number} | {exchange:.3f} | {measured:.3f} | {simulated:.3f} | {difference} |")


# One H200, bfloat16, 25,088 tokens: benchmarks/gpu.py. What a step takes without tokens are Adam's
# passes over weights, gradients and moments at the measured copy rate, and 2 ms of `fit`.
_TOKENS, _COPIES = 25_088, 4.05e12
# A machine of eight GPUs with NVLink (450 GB/s each way), and 400 Gbit/s for each GPU to others.
_GPUS = Network(450e9, 8 * 50e9, 10e-6, 8)
# A machine of eight with one network card of 100 Gbit/s.
_SLOW = Network(450e9, 12.5e9, 30e-6, 8)


def gpu_training(step: float, num_weights: float) -> Training:
    fixed = 2e-3 + 28 * num_weights / _COPIES
    # XLA joins the gradients to few exchanges; the pipeline makes 10.3 million tokens a second.
    return Training(fixed, (step - fixed) / _TOKENS, 4 * num_weights, 4, 1 / 10.3e6)


def foresee() -> None:
    models = {"base": gpu_training(0.0343, 63.1e6), "big": gpu_training(0.0800, 214.2e6)}
    print("\n| model | batch | devices | exchange, ms | step, ms | tokens/s | efficiency |", end="")
    print(" efficiency at 100 Gbit/s |\n|---|---|---|---|---|---|---|---|")
    for name, training in models.items():
        for devices in (1, 8, 64):
            for batch, tokens in (("25,000 in all", _TOKENS), ("25,000 each", _TOKENS * devices)):
                if devices == 1 and batch != "25,000 in all":
                    continue
                alone = training.fixed + training.per_token * tokens
                cells, efficiencies = [], []
                for network in (_GPUS, _SLOW):
                    step = simulate(training, network, devices, tokens)
                    exchange = exchange_seconds(training, network, devices)
                    cells.append((exchange, step))
                    efficiencies.append(alone / devices / step)
                exchange, step = cells[0]
                print(
                    f"| {name} | {batch} | {devices} | {exchange * 1e3:.1f} | {step * 1e3:.1f} | "
                    f"{tokens / step:,.0f} | {efficiencies[0]:.0%} | {efficiencies[1]:.0%} |"
                )


def main():
    if sys.argv[1:2] == ["--measure"]:
        start_and_measure(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, nargs="+", default=[2, 4], metavar="P")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each (default: 3)")
    parser.add_argument(
        "--tokens", type=int, default=8_192, help="of all processes (default: 8192)"
    )
    arguments = parser.parse_args()
    if arguments.processes != [0]:
        compare(arguments.processes, arguments.rounds, arguments.tokens)
    foresee()


if __name__ == "__main__":
    main()
