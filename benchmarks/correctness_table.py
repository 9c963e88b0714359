"""Measures the errors that the tests bound, and writes the tables of docs/correctness.md.

    python -m benchmarks.correctness_table

Run from the root of the repository, with jax, torch, transformers and keras-hub installed for every
row. Takes some minutes.
"""

import importlib.metadata
import importlib.util
import json
import os
import pathlib
import platform
import re
import subprocess
import sys
import textwrap

PATH = pathlib.Path(__file__).parent.parent / "docs" / "correctness.md"
BACKENDS = {"tensorflow": "TensorFlow", "jax": "JAX", "torch": "torch"}
LIBRARIES = ("keras", "tensorflow", "jax", "torch", "transformers", "keras-hub", "numpy")


def measure():
    """The errors on the backend of this process, as a dict that can be written as JSON."""
    import keras

    from tests.precision.components import COMPONENTS
    from tests.precision.measurements import policies

    results = {
        "components": {
            name: {
                policy: [component.measure(policy), component.bound(policy)]
                for policy in policies()
            }
            for name, component in COMPONENTS.items()
        }
    }
    if keras.backend.backend() == "tensorflow":
        results["bridges"] = measure_bridges()
    return results


def measure_bridges():
    """Name of a bridge -> [[output error, bound], [gradient error, bound]], or why not."""
    from tests.bridges.comparison import GRADIENT_TOLERANCE, OUTPUT_TOLERANCE
    from tests.bridges.errors import BRIDGE_ERRORS

    results = {}
    for name, errors in BRIDGE_ERRORS.items():
        dtype = name.split(", ")[-1]
        try:
            output_error, gradient_error = errors()
        except ImportError as error:
            results[name] = f"not measured: {error.name} is not installed"
            continue
        results[name] = [
            [output_error, OUTPUT_TOLERANCE[dtype]],
            None if gradient_error is None else [gradient_error, GRADIENT_TOLERANCE[dtype]],
        ]
    return results


def measure_in_a_process(backend):
    environment = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-m", "benchmarks.correctness_table", "--measure"]
    process = subprocess.run(
        command, env=environment, check=True, stdout=subprocess.PIPE, text=True
    )
    return json.loads(process.stdout.splitlines()[-1])


def versions():
    installed = [f"Python {platform.python_version()}"]
    for library in LIBRARIES:
        try:
            installed.append(f"{library} {importlib.metadata.version(library)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    text = f"Measured with {', '.join(installed)}, on a CPU ({platform.machine()})."
    return textwrap.fill(text, 100) + "\n"


def cell(pair):
    return "" if pair is None else f"{pair[0]:.1e} / {pair[1]:.1e}"


def table(header, rows):
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def precision_table(components):
    policies = list(next(iter(components.values())))
    rows = [
        [name, *(cell(errors[policy]) for policy in policies)]
        for name, errors in components.items()
    ]
    return table(["", *policies], rows)


def bridge_table(bridges):
    rows = [
        [name, errors, ""] if isinstance(errors, str) else [name, *map(cell, errors)]
        for name, errors in bridges.items()
    ]
    return table(["", "outputs", "gradients"], rows)


def with_table(page, title, table):
    """Returns the page with another table behind a title."""
    before, title, after = page.partition(f"{title}\n")
    return before + title + re.sub(r"(?:^\|.*\n)+", lambda _: table, after, count=1, flags=re.M)


def render(page, results):
    """Returns the page with the tables of a dict of backends to what `measure` returns."""
    page = re.sub(r"^Measured with (?:.+\n)+", lambda _: versions(), page, flags=re.M)
    for backend, measured in results.items():
        components = precision_table(measured["components"])
        page = with_table(page, f"### {BACKENDS[backend]}", components)
        if "bridges" in measured:
            page = with_table(page, "## Against other libraries", bridge_table(measured["bridges"]))
    return page


def main():
    if sys.argv[1:] == ["--measure"]:
        print(json.dumps(measure()))
        return
    installed = [backend for backend in BACKENDS if importlib.util.find_spec(backend)]
    results = {backend: measure_in_a_process(backend) for backend in installed}
    PATH.write_text(render(PATH.read_text(encoding="utf-8"), results), encoding="utf-8")
    print(f"Wrote {PATH}")


if __name__ == "__main__":
    main()
