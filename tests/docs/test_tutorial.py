"""docs/tutorial.ipynb runs from top to bottom and does what it says; its outputs are stored."""

import json
import pathlib
import re

import pytest

NOTEBOOK = pathlib.Path(__file__).resolve().parents[2] / "docs/tutorial.ipynb"
ROOT = NOTEBOOK.parents[1]
SHOWN = "It is half past seven. -> Es ist halb acht."
STORED = json.loads(NOTEBOOK.read_text("utf-8"))


def texts(cells):
    """What the cells print and show as text, one after the other."""
    found = []
    for cell in cells:
        for output in cell.get("outputs", []):
            shown = output.get("text") or output.get("data", {}).get("text/plain", "")
            found.append("".join(shown))
    return "\n".join(found)


def pictures(cells):
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    return [o["data"]["image/png"] for o in outputs if "image/png" in o.get("data", {})]


def execute(folder, monkeypatch, steps=None):
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
    resources = {"metadata": {"path": str(folder)}}
    client = nbclient.NotebookClient(
        notebook, timeout=1800, kernel_name="python3", resources=resources
    )
    client.execute()
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


def bleu_of(cells):
    (bleu,) = re.findall(r"^BLEU ([\d.]+)", texts(cells), re.MULTILINE)
    return float(bleu)


@pytest.mark.slow
@pytest.mark.tensorflow_only("it exports a SavedModel")
def test_it_runs_with_a_few_steps(tmp_path, monkeypatch):
    check(execute(tmp_path, monkeypatch, steps=10))


@pytest.mark.slow
@pytest.mark.tensorflow_only("it exports a SavedModel")
def test_it_learns_to_translate(tmp_path, monkeypatch):
    cells = execute(tmp_path, monkeypatch)
    check(cells)
    assert bleu_of(cells) > 80
    assert SHOWN in texts(cells)


def test_the_stored_outputs_are_those_of_a_whole_run():
    cells = [cell for cell in STORED["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    check(STORED["cells"])
    assert bleu_of(STORED["cells"]) > 80
    assert SHOWN in texts(STORED["cells"])


def test_the_stored_outputs_are_small_and_clean():
    outputs = [output for cell in STORED["cells"] for output in cell.get("outputs", [])]
    assert all(output["output_type"] != "error" for output in outputs)
    assert all(output.get("name") != "stderr" for output in outputs)
    assert not re.search(r"/tmp/|/home/|/root/|\x1b", texts(STORED["cells"]))
    assert sum(len(picture) for picture in pictures(STORED["cells"])) < 150_000


def test_the_number_of_steps_is_a_parameter():
    (cell,) = (c for c in STORED["cells"] if "parameters" in c["metadata"].get("tags", []))
    assert "TUTORIAL_STEPS" in "".join(cell["source"])
