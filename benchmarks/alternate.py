"""Runs programs by turns, each in a process of its own, and compares their medians.

A program prints one JSON object as its last line. By turns, since a machine that others use is
faster at one time than at another; the ratios of medians hold, the absolute figures drift.
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
    """Runs one program.

    Args:
        command: its file and arguments.
        more: variables of its environment beside those of this process.
        timeout: seconds.

    Returns:
        The object that it printed.

    Raises:
        RuntimeError: if it failed, with the end of what it said.
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
    return json.loads(result.stdout.splitlines()[-1])


def alternate(
    programs: Mapping[str, Sequence[str]], rounds: int, environment: Mapping[str, str] | None = None
) -> dict[str, list[dict]]:
    """Runs every program once in each round, and says how far it is.

    Args:
        programs: command by name; one that fails is reported and left out.
        rounds: int.
        environment: variables for all of them.

    Returns:
        what each printed, by name.
    """
    results: dict[str, list[dict]] = {name: [] for name in programs}
    start = time.monotonic()
    for number in range(rounds):
        for name, command in programs.items():
            elapsed = (time.monotonic() - start) / 60
            print(f"[{elapsed:4.1f} min] round {number + 1} of {rounds}: {name}", file=sys.stderr)
            try:
                results[name].append(run_program(command, environment))
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                print(f"  {error}", file=sys.stderr)
    return {name: found for name, found in results.items() if found}


def median(results: Sequence[dict], key: str) -> float:
    """Returns the median of a figure over the rounds."""
    return statistics.median(result[key] for result in results)


def hardware() -> str:
    """Returns the machine in a line: processor, cores, and what it can compute with."""
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    names = [line.split(":", 1)[1].strip() for line in text.splitlines() if "model name" in line]
    flags = " ".join(
        flag for flag in ("avx512_bf16", "amx_bf16", "avx512f", "avx2") if flag in text
    )
    return f"{os.cpu_count()} cores of {names[0] if names else 'an unknown processor'} ({flags})"
