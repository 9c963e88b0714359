"""docs/tutorial.ipynb runs from top to bottom and does what it says; its outputs are stored."""

import json
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "docs/tutorial.ipynb"
STORED = json.loads(NOTEBOOK.read_text("utf-8"))


def texts(cells):
    """What the cells print and show as text, one after the other."""
    shown = (o.get("text") or o.get("data", {}).get("text/plain", "") for o in outputs_of(cells))
    return "\n".join("".join(lines) for lines in shown)


def outputs_of(cells):
    return [output for cell in cells for output in cell.get("outputs", [])]


def pictures(cells):
    data = (output.get("data", {}) for output in outputs_of(cells))
    return [shown["image/png"] for shown in data if "image/png" in shown]


def execute(folder, monkeypatch, steps):
    """Cells of the notebook, run in a kernel of its own with a working directory of its own."""
    for library in ("nbclient", "nbformat", "ipykernel"):
        pytest.importorskip(library, reason=f"needs {library}: pip install '.[docs]'")
    import nbclient
    import nbformat

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    if steps is None:
        monkeypatch.delenv("TUTORIAL_STEPS", raising=False)
    else:
        monkeypatch.setenv("TUTORIAL_STEPS", str(steps))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    options = {"timeout": 1800, "kernel_name": "python3"}
    options["resources"] = {"metadata": {"path": str(folder)}}
    nbclient.NotebookClient(notebook, **options).execute()
    assert not list(folder.iterdir())  # It writes into a temporary folder of its own.
    return notebook.cells


def check(cells):
    """What holds after any number of steps."""
    text = texts(cells)
    (accuracy,) = re.findall(r"accuracy after each epoch: \[[\d.]+, ([\d.]+)\]", text)
    assert float(accuracy) > 0.99
    assert "changed positions: [5 6 7]" in text
    assert len(pictures(cells)) == 2
    # Reloaded and served, the translator gives the same answer.
    assert len(re.findall(r"^True$", text, re.MULTILINE)) == 2


def check_learned(cells):
    """What holds after all steps."""
    text = texts(cells)
    (bleu,) = re.findall(r"^BLEU ([\d.]+)", text, re.MULTILINE)
    assert float(bleu) > 80
    assert "It is half past seven. -> Es ist halb acht." in text


@pytest.mark.slow
@pytest.mark.tensorflow_only("it exports a SavedModel")
@pytest.mark.parametrize("steps", [10, None])
def test_it_runs_and_learns_to_translate(tmp_path, monkeypatch, steps):
    cells = execute(tmp_path, monkeypatch, steps)
    check(cells)
    if steps is None:
        check_learned(cells)


def test_the_stored_outputs_are_those_of_a_whole_run():
    cells = [cell for cell in STORED["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    check(STORED["cells"])
    check_learned(STORED["cells"])


def test_the_stored_outputs_are_small_and_clean():
    for output in outputs_of(STORED["cells"]):
        assert output["output_type"] != "error" and output.get("name") != "stderr"
    assert not re.search(r"/tmp/|/home/|/root/|\x1b", texts(STORED["cells"]))
    assert sum(len(picture) for picture in pictures(STORED["cells"])) < 150_000


def test_the_number_of_steps_is_a_parameter():
    (cell,) = (c for c in STORED["cells"] if "parameters" in c["metadata"].get("tags", []))
    assert "TUTORIAL_STEPS" in "".join(cell["source"])
