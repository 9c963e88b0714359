"""docs/tutorial.ipynb runs from top to bottom and does what it says; its outputs are stored."""

import base64
import io
import json
import pathlib
import re

import numpy as np
import pytest
from PIL import Image, ImageChops

from keras_transformer.quickstart import number_corpus
from tests.docs.public_names import load_script

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


def answers():
    """The code of the answers to the exercises, which is in collapsed Markdown."""
    sources = ("".join(cell["source"]) for cell in STORED["cells"])
    folded = [text for text in sources if text.startswith("<details>")]
    return ["\n".join(re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)) for text in folded]


def execute(folder, monkeypatch, steps, pairs=""):
    """Cells of the notebook, and with all steps the answers, run in a folder of its own."""
    for library in ("nbclient", "nbformat", "ipykernel"):
        pytest.importorskip(library, reason=f"needs {library}: pip install '.[docs]'")
    import nbclient
    import nbformat

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("TUTORIAL_PAIRS", str(pairs))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    if steps is None:
        monkeypatch.delenv("TUTORIAL_STEPS", raising=False)
        notebook.cells += [nbformat.v4.new_code_cell(code) for code in answers()]
    else:
        monkeypatch.setenv("TUTORIAL_STEPS", str(steps))
    options = {"timeout": 1800, "kernel_name": "python3"}
    options["resources"] = {"metadata": {"path": str(folder)}}
    nbclient.NotebookClient(notebook, **options).execute()
    assert not list(folder.iterdir())  # It writes into a temporary folder of its own.
    return notebook.cells


def check(cells):
    """What holds after any number of steps."""
    text = texts(cells)
    # What is built by hand equals the library's.
    differences = [float(value) for value in re.findall(r"^difference: (.+)$", text, re.M)]
    assert len(differences) == 9 and max(differences) < 1e-5
    (accuracy,) = re.findall(r"accuracy after each epoch: \[[\d.]+, ([\d.]+)\]", text)
    assert float(accuracy) > 0.99
    assert "changed positions: [5 6 7]" in text
    # The training step: the loss twice over, and the weights.
    losses = re.findall(r"by hand: ([\d.]+)\s+library: +([\d.]+)$", text, re.M)
    assert len(losses) == 2
    for loss, library in losses:
        assert float(loss) == pytest.approx(float(library), rel=1e-5)
    (largest,) = re.findall(r"largest difference of a weight: (\S+), a step of 1e-05", text)
    assert float(largest) < 2e-6
    assert "the same: True" in text
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
def test_it_runs_and_learns_to_translate(tmp_path, monkeypatch):
    cells = execute(tmp_path, monkeypatch, steps=None)
    check(cells)
    check_learned(cells)


@pytest.mark.slow
@pytest.mark.tensorflow_only("it exports a SavedModel")
def test_it_runs_with_a_file_of_pairs(tmp_path, monkeypatch):
    train_pairs, _, _ = number_corpus(num_train=20_000, num_valid=0, num_test=0)
    path, folder = tmp_path / "pairs.tsv", tmp_path / "folder"
    lines = ("\t".join((*pair, "a third column")) for pair in train_pairs)
    path.write_text("\n".join(lines), "utf-8")
    folder.mkdir()
    check(execute(folder, monkeypatch, steps=10, pairs=path))


def test_the_stored_outputs_are_those_of_a_whole_run():
    cells = [cell for cell in STORED["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    check(STORED["cells"])
    check_learned(STORED["cells"])


def test_the_stored_outputs_are_small_and_clean():
    for output in outputs_of(STORED["cells"]):
        assert output["output_type"] != "error" and output.get("name") != "stderr"
    assert not re.search(r"/tmp/|/home/|/root/|\x1b", texts(STORED["cells"]))
    assert NOTEBOOK.stat().st_size < 1_000_000


def test_five_lines_lead_to_the_first_computed_picture():
    before = []
    for cell in STORED["cells"]:
        if cell["cell_type"] == "code":
            before += [line for line in cell["source"] if line.strip()]
        if pictures([cell]):
            break
    assert [line.startswith("plt.") for line in before].index(True) <= 5


@pytest.mark.slow
def test_every_diagram_is_a_cell_with_a_description():
    drawing = load_script("docs/tutorial_notebook.py")
    cells = {cell["id"]: "".join(cell["source"]) for cell in STORED["cells"]}
    for name, draw in drawing.DIAGRAMS.items():
        element = r'<img alt="([^"]{50,})" width="(\d+)" src="data:image/png;base64,(.+)">'
        _, width, data = re.fullmatch(element, cells[name]).groups()
        stored = Image.open(io.BytesIO(base64.b64decode(data)))
        now = Image.open(io.BytesIO(draw().png()))
        assert stored.size == now.size and stored.width == 2 * int(width)
        # The diagram that the script draws, up to another version of matplotlib.
        change = ImageChops.difference(stored.convert("L"), now.convert("L"))
        assert np.mean(np.asarray(change)) < 2


def test_three_exercises_have_an_answer_that_checks_itself():
    assert [code.count("assert ") for code in answers()] == [1, 1, 1]


def test_the_number_of_steps_is_a_parameter():
    (cell,) = (c for c in STORED["cells"] if "parameters" in c["metadata"].get("tags", []))
    assert "TUTORIAL_STEPS" in "".join(cell["source"])
