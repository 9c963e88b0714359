"""Measures the errors that the tests bound, and writes docs/correctness.md.

    python -m tests.correctness_table

Run from the root of the repository, with jax, torch, transformers and keras-hub installed for every
row; what is not installed is left out and named. Takes some minutes.
"""

import importlib.metadata
import importlib.util
import json
import os
import pathlib
import platform
import subprocess
import sys
import textwrap

from tests.found_bugs import FOUND_BUGS

COMMAND = "python -m tests.correctness_table"
PATH = pathlib.Path(__file__).parent.parent / "docs" / "correctness.md"
BACKENDS = {"tensorflow": "TensorFlow", "jax": "JAX", "torch": "torch"}
LIBRARIES = ("keras", "tensorflow", "jax", "torch", "transformers", "keras-hub", "numpy")

INTRODUCTION = f"""# Correctness

    {COMMAND}

This command measures every figure on this page and writes the page. The tests assert the bounds
next to the figures.

The library is compared with an oracle: the Transformer in NumPy float64, written from the paper
alone, without an import from the package. `tests/oracle/` contains the model with loops for the
paper's formulas of one head or one position, its gradient by the chain rule, the loss with an
explicit target, Adam, and searches that consider every sequence. The oracle itself is compared
with central differences and with results computed by hand.

- Layers and whole models, with their gradients for every parameter and input, over shapes, numbers
  of heads, sizes of keys and values, masks, norms, biases, vocabularies and positions:
  `tests/oracle/test_layers_equal_the_oracle.py`. The bounds on outputs and gradients are
  {{sweep}}.
- The same in every precision, on each backend: `tests/precision/test_components.py`, and below.
- Label smoothing in both conventions, and its gradient, also at logits of 10,000:
  `tests/training/test_label_smoothing.py`, `tests/precision/test_huge_logits.py`.
- Adam and the schedule over 50 steps: `tests/oracle/test_adam.py`.
- Greedy and beam search with both length penalties: `tests/decoding/test_beam_search.py`.
- Extreme inputs in every precision, in `tests/precision/`: sequences of 5,000 positions, queries
  that may attend to nothing, batches of padding alone, one token, and the maximum length.
- Outputs and gradients with weights copied from and to other libraries: `tests/bridges/`, and
  below.
"""

PRECISIONS = """## Against the oracle, in every precision

The error is the largest difference, relative to the oracle's largest number, for random weights
and inputs in the dtype of the layer. The number after the slash is the bound: eps of the compute
dtype times the square root of the number of rounded results on the way to the output
(`tests/precision/components.py` counts them). On JAX and torch Keras promotes no type beyond
float32, so a float64 policy is only partly float64 there and is left out.
"""

BRIDGES = """## Against other libraries

Both sides have the same weights, over several shapes and masks. Errors are relative to the largest
number. The number after the slash is the bound.
"""

BUGS = """## Bugs that the oracles found

Each of these bugs was in this library and is fixed. The named test guards against it.
"""

MUTATION = """## Do the tests notice?

A mutation tester (cosmic-ray) changes a line of the layers, the loss or the search, and the tests
should fail. Of a random sample of 66 such mutants, the tests on TensorFlow notice 62 and do not
notice 4: 93.9 % (2026-11-23, seed 0; 60 before two of the tests were written). With the extra
`mutation` installed, 220 of them take half an hour on two cores:

<!-- not run: takes minutes -->
```bash
python -m tests.mutation --sample 66 --seed 0 --workers 2
```
"""


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
    output = subprocess.run(
        [sys.executable, "-m", "tests.correctness_table", "--measure"],
        env=environment,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    return json.loads(output.splitlines()[-1])


def introduction():
    from tests.precision.against_oracle import SWEEP_BOUNDS

    bounds = [
        f"{output:.0e} and {gradient:.0e} in {dtype}"
        for dtype, (output, gradient) in SWEEP_BOUNDS.items()
    ]
    return INTRODUCTION.format(sweep=", ".join(bounds))


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


def bug_list():
    lines = [
        textwrap.fill(f"- {what}", 100, subsequent_indent="  ") + f"\n  `{test}`"
        for what, test in FOUND_BUGS
    ]
    return "\n".join(lines) + "\n"


def render(results):
    """The page, from a dict of backends to what `measure` returns."""
    parts = [introduction(), versions(), PRECISIONS]
    for backend, measured in results.items():
        parts += [f"### {BACKENDS[backend]}\n", precision_table(measured["components"])]
    for measured in results.values():
        if "bridges" in measured:
            parts += [BRIDGES, bridge_table(measured["bridges"])]
    return "\n".join([*parts, MUTATION, BUGS, bug_list()])


def main():
    if sys.argv[1:] == ["--measure"]:
        print(json.dumps(measure()))
        return
    installed = [backend for backend in BACKENDS if importlib.util.find_spec(backend)]
    PATH.write_text(
        render({backend: measure_in_a_process(backend) for backend in installed}), encoding="utf-8"
    )
    print(f"Wrote {PATH}")


if __name__ == "__main__":
    main()
