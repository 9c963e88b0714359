"""The README's commands on a new machine, and its classifier on padded input."""

import pathlib
import re

import numpy as np

from keras_transformer.models import TransformerConfig, get_preset
from keras_transformer.settings.transformer_config import count_parameters
from tests.closeness import assert_close

ROOT = pathlib.Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_classifier_gives_a_padded_sentence_the_answer_of_the_sentence_alone():
    names = {}
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(next(block for block in blocks if "classifier" in block), names)
    padded, alone = np.array([[5, 6, 7, 0, 0]]), np.array([[5, 6, 7]])
    assert_close(names["classifier"](padded), names["classifier"](alone))


def test_the_table_of_presets_has_their_parameters():
    """Without making the models, which take gigabytes."""
    text = (ROOT / "docs/training.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \|.*\| ([\d,]+) \| [^|]+ \|$", text, re.M)
    assert len(rows) >= 5
    for preset, count in rows:
        config = TransformerConfig(37_000, **get_preset(preset).config)
        assert f"{count_parameters(config):,}" == count
