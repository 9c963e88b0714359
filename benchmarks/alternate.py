"""Runs programs in turn, each in its own process, and returns their results.

A program prints one JSON object as its last line. The programs take turns because the speed of a
shared machine changes: absolute figures drift, but the ratios of medians are reliable.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def run_program(
    command: Sequence[str], more: Mapping[str, str] | None = None, timeout: float = 1800
) -> dict:
    """Runs one program, and returns the JSON object that it printed last.

    The arguments and errors are those of `results_of`.
    """
    return results_of(command, more, timeout)[-1]


def results_of(
    command: Sequence[str], more: Mapping[str, str] | None = None, timeout: float = 1800
) -> list[dict]:
    """Runs one program.

    Args:
        command: the program's file and arguments.
        more: environment variables to add to those of this process.
        timeout: seconds.

    Returns:
        The JSON objects that the program printed, one on each line.

    Raises:
        RuntimeError: if the program failed; the message has the end of its error output.
    """
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **(more or {})}
    environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])
    )
    result = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=timeout, env=environment
    )
    if result.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{result.stderr[-2000:]}")
    return [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]


def alternate(
    programs: Mapping[str, Sequence[str]], rounds: int, environment: Mapping[str, str] | None = None
) -> dict[str, list[dict]]:
    """Runs every program once per round, and prints the progress.

    Args:
        programs: command by name; the runs that fail are reported and left out.
        rounds: number of rounds.
        environment: environment variables for all programs.

    Returns:
        The results of each program that succeeded at least once, by name.
    """
    results: dict[str, list[dict]] = {name: [] for name in programs}
    start = time.monotonic()
    for number in range(rounds):
        for name, command in programs.items():
            elapsed = (time.monotonic() - start) / 60
            print(f"[{elapsed:4.1f} min] round {number + 1} of {rounds}: {name}", file=sys.stderr)
            try:
                results[name].append(run_program(command, environment))
                print(f"  {results[name][-1]}", file=sys.stderr)
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                print(f"  {error}", file=sys.stderr)
    return {name: found for name, found in results.items() if found}


def median(results: Sequence[dict], key: str) -> float:
    """Returns the median of a figure over the rounds."""
    return statistics.median(result[key] for result in results)


def imitate(instructions: str | None) -> dict[str, str]:
    """Returns the environment variables that limit all programs to a processor's instructions.

    Args:
        instructions: `"avx2"`, or None for all that this processor has.
    """
    if instructions is None:
        return {}
    # oneDNN (of TensorFlow, torch and CTranslate2), MKL (of the last two), and CTranslate2 itself.
    variables = ("ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "CT2_FORCE_CPU_ISA")
    limits = dict.fromkeys(variables, instructions.upper())
    # As our commands set it, unless the caller does.
    switch = os.environ.get("TF_ENABLE_ONEDNN_OPTS", "1")
    return limits | {"ATEN_CPU_CAPABILITY": instructions, "TF_ENABLE_ONEDNN_OPTS": switch}


def hardware() -> str:
    """Returns a line about the machine: processor, number of cores, and instruction sets."""
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    names = [line.split(":", 1)[1].strip() for line in text.splitlines() if "model name" in line]
    flags = " ".join(
        flag for flag in ("avx512_bf16", "amx_bf16", "avx512f", "avx2") if flag in text
    )
    return f"{os.cpu_count()} cores of {names[0] if names else 'an unknown processor'} ({flags})"
