"""The plots: files of a sane size, drawn without pyplot, and clear errors."""

import warnings

import numpy as np
import pytest

from keras_transformer.errors import UserError
from keras_transformer.evaluation import plot_attention, plot_learning_curve

ROWS = [
    {"step": step, "loss": 700 / step, **({"bleu": step / 6} if step % 200 == 0 else {})}
    for step in range(100, 601, 100)
]


def png_size(path):
    """(width, height) in pixels, from the PNG's header chunk."""
    header = path.read_bytes()[:24]
    assert header[:8] == b"\x89PNG\r\n\x1a\n"
    return int.from_bytes(header[16:20], "big"), int.from_bytes(header[20:24], "big")


@pytest.fixture(autouse=True)
def warnings_are_errors():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def attention(*shape):
    weights = np.random.default_rng(0).gamma(0.3, size=shape) + 1e-6
    return weights / weights.sum(axis=-1, keepdims=True)


def test_learning_curve_has_a_panel_for_loss_and_one_for_scores(tmp_path):
    both = plot_learning_curve(ROWS, tmp_path / "both.png", title="Costs $5 and $6")
    loss = plot_learning_curve([{"step": 1, "loss": 2.0}], tmp_path / "loss.png")
    assert png_size(both) == (1560, 570)
    assert png_size(loss) == (780, 570)
    assert 10_000 < both.stat().st_size < 300_000


def test_learning_curve_without_a_point_is_refused(tmp_path):
    for rows in ([], [{"step": 1}], [{"loss": 1.0}]):
        with pytest.raises(ValueError, match=f"Received: {len(rows)} rows"):
            plot_learning_curve(rows, tmp_path / "curve.png")
    assert not list(tmp_path.iterdir())


def test_pieces_in_any_script_and_dollars_are_plain_text(tmp_path):
    pieces = ["$x^", "日本", "🙂", "▁$5", "", "\\frac"]
    path = plot_attention(attention(6, 6), pieces, pieces, tmp_path / "odd.png", title="$\\bad")
    assert path.stat().st_size > 5_000


@pytest.mark.parametrize("shape", [(3, 2), (3,), (0, 2, 3)])
def test_attention_of_the_wrong_shape_is_refused(tmp_path, shape):
    with pytest.raises(ValueError, match="2 target and 3 source pieces"):
        plot_attention(np.ones(shape), ["a", "b", "c"], ["d", "e"], tmp_path / "map.png")


def test_plots_can_be_vector_graphics_and_other_endings_are_refused(tmp_path):
    for ending in ("pdf", "svg"):
        path = plot_learning_curve(ROWS, tmp_path / "deep" / f"curve.{ending}")
        assert path.stat().st_size > 1_000
    with pytest.raises(UserError, match=r"must end in .*\.png.* Received: .*curve\.txt"):
        plot_learning_curve(ROWS, tmp_path / "curve.txt")
