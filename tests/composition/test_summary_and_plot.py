"""`model.summary()` and `keras.utils.plot_model` of models made of our layers."""

import importlib.util
import shutil

import keras
import pytest

from tests.composition.answers import tiny_transformer


@pytest.fixture(scope="module")
def model():
    return tiny_transformer(num_encoder_layers=2)


def lines_of(model, **kwargs):
    lines = []
    model.summary(print_fn=lines.append, **kwargs)
    return "\n".join(lines).splitlines()


def test_the_summary_counts_every_parameter_once(model):
    lines = lines_of(model)
    (encoder,) = (line for line in lines if line.startswith("│ encoder (Encoder) "))
    block = 4 * 8 * 8 + 2 * 8 * 16 + 16 + 8 + 4 * 8  # As in docs/conventions.md.
    assert f"{2 * block:,}" in encoder
    (embedding,) = (line for line in lines if line.startswith("│ embedding "))
    assert " 160 " in embedding
    (total,) = (line for line in lines if "Total params" in line)
    assert f"{model.count_params():,}" in total


def test_the_summary_shows_what_is_frozen(model):
    model.encoder.trainable = False
    lines = lines_of(model, show_trainable=True)
    model.encoder.trainable = True
    (frozen,) = (line for line in lines if "Non-trainable params" in line)
    assert f"{model.encoder.count_params():,}" in frozen


def test_the_graph_names_every_layer(model):
    if importlib.util.find_spec("pydot") is None:
        pytest.skip("needs pydot")
    graph = keras.utils.model_to_dot(model, show_layer_names=True).to_string()
    for name in ("source", "target", "embedding", "encoder", "decoder"):
        assert name in graph


def test_plot_model_writes_a_picture(model, tmp_path):
    if importlib.util.find_spec("pydot") is None or shutil.which("dot") is None:
        pytest.skip("needs pydot and the program `dot` of graphviz")
    path = tmp_path / "model.png"
    keras.utils.plot_model(model, to_file=str(path), show_shapes=True)
    assert path.read_bytes().startswith(b"\x89PNG")
