"""What the README promises: its commands exist with these options, its layers compose."""

import pathlib
import re
import shlex

import numpy as np

from keras_transformer.cli.application import build_parser
from keras_transformer.models import TransformerConfig, get_preset
from keras_transformer.settings.transformer_config import count_parameters
from tests.closeness import assert_close

README = pathlib.Path(__file__).resolve().parents[2] / "README.md"
TEXT = README.read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


def test_every_command_in_the_text_is_understood():
    """Those of blocks: `tests/docs/test_page_blocks.py`."""
    commands = re.findall(r"`keras-transformer ([^`<>|]+)", TEXT)
    assert commands and all(build_parser().parse_args(shlex.split(line)).run for line in commands)


def test_the_readme_opens_with_the_two_commands_of_a_fresh_machine():
    first, *others = blocks("bash")
    # The environment is activated, so that the command is found afterwards.
    assert first == (
        "python3 -m venv .venv && . .venv/bin/activate && pip install . && "
        "keras-transformer quickstart\n"
    )
    assert (
        "python3 -m venv .venv && .venv/bin/pip install '.[test]' && "
        ".venv/bin/python -m pytest -n 2\n"
    ) in others


def test_the_layers_compose_with_keras_as_shown():
    """The classifier gives a padded sentence the answer of the sentence alone."""
    (code,) = (block for block in blocks("python") if "classifier" in block)
    names = {}
    exec(code, names)
    padded, alone = np.array([[5, 6, 7, 0, 0]]), np.array([[5, 6, 7]])
    classifier = names["classifier"]
    assert_close(classifier(padded), classifier(alone))


def test_the_table_of_presets_has_their_parameters():
    """Without making the models, which take gigabytes."""
    rows = re.findall(r"^\| `(\w+)` \|.*\| ([\d,]+) \| [^|]+ \|$", TEXT, re.M)
    assert len(rows) >= 5
    for preset, count in rows:
        config = TransformerConfig(37_000, **get_preset(preset).config)
        assert f"{count_parameters(config):,}" == count
