"""Do the tests notice when a line of the library is wrong? A sample of mutants, and their tests.

    python -m benchmarks.mutation --sample 220 --seed 0 --workers 2

Run from the root of the repository with the extras `test` and `mutation`, on Linux. Takes about 30
minutes on two cores. Each mutant is one small change of a layer, the loss or the search, made by
cosmic-ray; it is killed if a test fails with it. Prints every mutant as it is tested, then the
scores by module and the survivors as diffs; the exit status is 1 below a score of 85 %.

Outcomes go to the file of `--results` at once, and what is there is not run again: an interrupted
run goes on. `--again` runs the survivors again, after a test was added, or on another backend for
lines that only it reaches: `KERAS_BACKEND=jax python -m benchmarks.mutation --again`.
"""

import argparse
import collections
import json
import os
import pathlib
import sys

from benchmarks.mutation.mutants import draw
from benchmarks.mutation.runner import Job, run_all

GOAL = 0.85
COPIED = ("keras_transformer", "tests", "pyproject.toml")
PRELOAD = ("keras", "pytest", "hypothesis")
MODULES = (
    "keras_transformer/layers/*.py",
    "keras_transformer/decoding/*.py",
    "keras_transformer/losses/*.py",
)
# After the tests that mirror the module, those of what uses it; they cost a survivor a minute.
USERS = {
    "layers": ("tests/oracle/test_layers_equal_the_oracle.py",),
    "decoding": ("tests/models/test_transformer.py",),
    "losses": (
        "tests/precision/test_huge_logits.py",
        "tests/oracle/test_layers_equal_the_oracle.py",
    ),
    "layers/composite_layer.py": ("tests/composition/test_freezing.py",),
    # Several devices are simulated in a process of its own.
    "layers/dropout_and_normalization.py": ("tests/distributed/test_mirrored.py",),
}


def tests_of(module):
    """The tests of a module of the package, in the order to run them in."""
    package, *_, name = module.split("/")[1:]
    mirror = f"tests/{package}/test_{name}"
    found = [mirror] if pathlib.Path(mirror).exists() else []
    found += sorted(map(str, pathlib.Path("tests", package).glob("test_*.py")))
    found += USERS[package] + USERS.get(f"{package}/{name}", ())
    return tuple(dict.fromkeys(found))


def check_baseline(modules, workers):
    """Run the tests of every package without a change; returns seconds by tests.

    Raises:
        SystemExit: If a test fails, or there is none.
    """
    jobs = {tests_of(module): Job(module, tests_of(module), timeout=1800) for module in modules}
    # The mirror comes first, which changes the order but not the tests.
    jobs = {frozenset(tests): job for tests, job in jobs.items()}
    seconds = {}
    for job, outcome in run_all(jobs.values(), os.getcwd(), COPIED, workers, PRELOAD):
        print(f"Without mutation: {outcome.seconds:.0f} s, {outcome.reason or 'all passed'}")
        if outcome.status != "survived":
            sys.exit(f"The tests must pass before they can be tested: {outcome}")
        seconds[frozenset(job.tests)] = outcome.seconds
    return seconds


def read_results(path, again):
    """Outcomes by diff; with `again` without the survivors."""
    if not path.exists():
        return {}
    records = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    results = {record["diff"]: record for record in records}
    return {
        diff: record
        for diff, record in results.items()
        if not (again and record["status"] == "survived")
    }


def run_mutants(mutants, results, path, seconds, workers):
    """Test the mutants that have no result, and write each result down."""
    jobs = {}
    for mutant in mutants:
        if mutant.diff not in results:
            tests = tests_of(mutant.module)
            timeout = 30 + 3 * seconds[frozenset(tests)]
            jobs[Job(mutant.module, tests, timeout, mutant.source)] = mutant
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        runs = run_all(jobs, os.getcwd(), COPIED, workers, PRELOAD)
        for number, (job, outcome) in enumerate(runs, start=1):
            mutant = jobs[job]
            record = vars(mutant) | vars(outcome) | {"seconds": round(outcome.seconds, 1)}
            del record["source"]
            results[mutant.diff] = record
            print(json.dumps(record), file=file, flush=True)
            where = f"{mutant.module}:{mutant.line} {mutant.operator}"
            what = f"{outcome.status} in {outcome.seconds:.0f} s"
            print(f"{number}/{len(jobs)} {where}: {what} {outcome.reason}", flush=True)


def report(records):
    """Print the scores by module and the survivors; returns the score of all."""
    counts = collections.defaultdict(collections.Counter)
    for record in records:
        for name in (record["module"], "all"):
            counts[name][record["status"]] += 1
            counts[name]["timeout"] += record["reason"] == "timeout"
    print(f"\n{'':52} tested killed (by time) survived incompetent score")
    for name in sorted(counts, key=lambda name: (name == "all", name)):
        count = counts[name]
        tested = count["killed"] + count["survived"]
        score = count["killed"] / tested if tested else float("nan")
        print(
            f"{name:52} {tested:6} {count['killed']:6} {count['timeout']:9} "
            f"{count['survived']:8} {count['incompetent']:11} {score:5.0%}"
        )
    for record in records:
        if record["status"] == "survived":
            print(f"\n{record['operator']} survived:\n{record['diff']}")
    return score


def main():
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.mutation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--sample", type=int, default=220, help="how many mutants")
    parser.add_argument("--seed", type=int, default=0, help="which ones")
    parser.add_argument("--workers", type=int, default=2, help="how many at once")
    parser.add_argument("--results", type=pathlib.Path, default="build/mutation.jsonl")
    parser.add_argument("--again", action="store_true", help="run the survivors again")
    arguments = parser.parse_args()

    modules = sorted(
        path.as_posix() for pattern in MODULES for path in pathlib.Path().glob(pattern)
    )
    mutants, total = draw(pathlib.Path.cwd(), modules, arguments.sample, arguments.seed)
    results = read_results(arguments.results, arguments.again)
    print(f"{len(mutants)} of {total} mutants drawn with seed {arguments.seed}", flush=True)
    if any(mutant.diff not in results for mutant in mutants):
        seconds = check_baseline([mutant.module for mutant in mutants], arguments.workers)
        run_mutants(mutants, results, arguments.results, seconds, arguments.workers)
    score = report([results[mutant.diff] for mutant in mutants])
    print(f"\nScore {score:.1%}, at least {GOAL:.0%} asked for.")
    sys.exit(score < GOAL)


if __name__ == "__main__":
    main()
