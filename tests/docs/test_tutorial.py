"""docs/tutorial.ipynb runs from top to bottom and does what it says; its outputs are stored."""

import json
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "docs/tutorial.ipynb"
STORED = json.loads(NOTEBOOK.read_text("utf-8"))


def outputs_of(cells):
    return [output for cell in cells for output in cell.get("outputs", [])]


def text_of(cells):
    """The printed and shown text of all cells, in their order."""
    shown = (o.get("text") or o.get("data", {}).get("text/plain", "") for o in outputs_of(cells))
    return "\n".join("".join(lines) for lines in shown)


def answers():
    """The code of the answers to the exercises, which is in collapsed Markdown."""
    sources = ("".join(cell["source"]) for cell in STORED["cells"])
    folded = [text for text in sources if text.startswith("<details>")]
    return ["\n".join(re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)) for text in folded]


def check(cells):
    """Checks after a run of all cells."""
    text = text_of(cells)
    # What is built by hand equals the library's.
    differences = [float(value) for value in re.findall(r"^difference: (.+)$", text, re.M)]
    assert len(differences) == 9 and max(differences) < 1e-5
    (accuracy,) = re.findall(r"accuracy after each epoch: \[[\d.]+, ([\d.]+)\]", text)
    assert float(accuracy) > 0.99
    # Reloaded and served, the translator gives the same answer.
    assert len(re.findall(r"^True$", text, re.MULTILINE)) == 2
    (bleu,) = re.findall(r"^BLEU ([\d.]+)", text, re.MULTILINE)
    assert float(bleu) > 80
    assert "It is half past seven. -> Es ist halb acht." in text


@pytest.mark.slow
@pytest.mark.tensorflow_only("it exports a SavedModel")
def test_it_runs_and_learns_to_translate_and_its_exercises_have_answers(tmp_path, monkeypatch):
    for library in ("nbclient", "nbformat", "ipykernel"):
        pytest.importorskip(library, reason=f"needs {library}: pip install '.[docs]'")
    import nbclient
    import nbformat

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("TUTORIAL_STEPS", raising=False)
    monkeypatch.delenv("TUTORIAL_PAIRS", raising=False)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    # An answer checks itself.
    assert [code.count("assert ") for code in answers()] == [1, 1, 1]
    notebook.cells += [nbformat.v4.new_code_cell(code) for code in answers()]
    options = {"timeout": 1800, "kernel_name": "python3"}
    options["resources"] = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, **options).execute()
    assert not list(tmp_path.iterdir())  # It writes into a temporary folder of its own.
    check(notebook.cells)


def test_the_stored_outputs_are_those_of_a_whole_run_and_clean():
    cells = [cell for cell in STORED["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    check(STORED["cells"])
    for output in outputs_of(STORED["cells"]):
        assert output["output_type"] != "error" and output.get("name") != "stderr"
    assert not re.search(r"/tmp/|/home/|/root/|\x1b", text_of(STORED["cells"]))
