"""examples/table_3.py: its rows are the presets scaled down, and its verdicts those by hand."""

import pytest

from keras_transformer import list_presets
from tests.docs.public_names import load_script


@pytest.fixture(scope="module")
def table_3():
    return load_script("examples/table_3.py")


def test_every_row_of_the_paper_is_trained(table_3):
    presets = [name for name in list_presets() if name.startswith("table3")]
    assert list(table_3.PAPER) == ["base", *presets]


@pytest.mark.parametrize(
    "row, sizes",
    [("base", (3, 64, 256, 8, None)), ("table3_a_h32", (3, 64, 256, 32, None)),
     ("table3_b_dk16", (3, 64, 256, 8, 2)), ("table3_c_n8", (4, 64, 256, 8, None)),
     ("table3_c_d1024", (3, 128, 256, 8, None)), ("table3_c_ff4096", (3, 64, 512, 8, None))],
)  # fmt: skip
def test_a_row_has_half_the_layers_and_an_eighth_of_the_widths(table_3, row, sizes):
    config, recipe = table_3.scaled(row)
    found = (config.num_encoder_layers, config.d_model, config.intermediate_dim)
    assert (*found, config.num_heads, config.key_dim) == sizes
    assert config.num_decoder_layers == config.num_encoder_layers
    assert recipe.average_checkpoints == 1


@pytest.mark.parametrize(
    "paper, ours, spread, answer",
    [(0.5, 0.3, 0.1, "yes"), (-0.5, -0.3, 0.1, "yes"), (0.5, 0.3, 0.4, "yes, within spread"),
     (0.5, -0.3, 0.1, "no"), (0.5, -0.3, 0.4, "no, within spread"),
     (0.01, 0.05, 0.1, "yes: none"), (0.01, 0.3, 0.1, "no: paper has none")],
)  # fmt: skip
def test_a_verdict_needs_the_direction_and_more_than_the_spread(
    table_3, paper, ours, spread, answer
):
    assert table_3.verdict(paper, ours, spread, tie=0.03) == answer
