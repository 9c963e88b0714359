"""Settings of `train`: a commented TOML file, read back strictly, and overruled by options."""

import contextlib
import re

import pytest

from keras_transformer.cli.application import build_parser
from keras_transformer.cli.settings import (
    all_options,
    read_config,
    resolve,
    training_settings,
)
from keras_transformer.cli.task_commands import commands_of
from keras_transformer.errors import UserError
from keras_transformer.inference.tasks import get_task
from keras_transformer.models import TrainingRecipe, TransformerConfig, get_preset
from keras_transformer.settings.base import check_value, choices_of, settings_fields
from keras_transformer.training import TrainingSettings
from keras_transformer.translation.task import TranslationSettings

SETTINGS = all_options()
PARSER = build_parser("train")


def parse(*arguments):
    return resolve(PARSER.parse_args(["train", *map(str, arguments)]))


@pytest.fixture
def settings_file(tmp_path):
    """Writes a settings file and returns its path."""
    path = tmp_path / "settings.toml"
    return lambda content: path.write_text(content) and path


def test_the_printed_file_has_every_setting_and_is_read_back(run, settings_file):
    text = run("train", "--print-config", "--preset", "tiny").output
    assert parse("--config", settings_file(text)) == parse("--preset", "tiny")
    # What is commented out shows the preset's value.
    preset = get_preset("tiny")
    assert f"\n# warmup_steps = {preset.recipe.warmup_steps}\n" in text
    switched_on = re.sub("^# (.* = )", r"\1", text, flags=re.M)
    assert not SETTINGS.keys() - read_config(settings_file(switched_on)).keys()


def test_options_win_over_the_file_and_the_file_over_the_defaults(settings_file):
    text = '[model]\npreset = "base"\ndropout = 0.2\n[training]\nseed = 5\nr_drop = 5\n'
    values = parse("--config", settings_file(text), "--dropout", "0.4")
    assert (values["r_drop"], type(values["r_drop"])) == (5.0, float)
    assert (values["preset"], values["dropout"], values["seed"]) == ("base", 0.4, 5)
    assert values["bleu_every"] == SETTINGS["bleu_every"].default


@pytest.mark.parametrize(
    "content, message",
    [
        ("[training]\nwarmup_step = 5", "did you mean warmup_steps"),
        ("[model]\nseed = 5", r"seed belongs in \[training\]"),
        ("seed = 5", r"one of the tables \[data\]"),
        ('[training]\nseed = "5"', "seed must be a whole number from 0 .*Received: '5'"),
        ("[machine]\nmixed_precision = 1", "mixed_precision must be true or false"),
        ('[data]\ncorpus = "a=1:x,y"', "corpus must be a list of strings"),
        ("a = " + "[" * 9_999, "not a valid TOML file: maximum recursion depth"),
        ("a" + ".a" * 2**15 + " = 1", "not a valid TOML file: it is larger than 32,768 bytes"),
    ],
)
def test_a_wrong_file_is_named_with_what_is_wrong(settings_file, content, message):
    path = settings_file(content)
    with pytest.raises(UserError, match=message) as error:
        read_config(str(path))
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    "arguments, positions",
    [
        ("--preset tiny --max-length 60", None),
        ("--preset tiny --position learned", get_preset("tiny").recipe.max_length),
        ("--preset table3_e --max-length 60", 60),
    ],
)
def test_learned_positions_are_as_many_as_the_longest_sentence_needs(arguments, positions):
    settings = training_settings(parse(*arguments.split()))
    assert settings.model.get("max_length") == positions
    TransformerConfig(vocab_size=300, **{**get_preset(settings.preset).config, **settings.model})


def different_value(kind, default):
    """A value that is allowed and is not the default."""
    for value in (*choices_of(kind), "gelu", 7, 0.25, (3, 4), ("encoder",), default is not True):
        with contextlib.suppress(ValueError):
            if check_value(kind, value) != default:
                return value
    raise AssertionError(kind)


# Without the fields that have no option, or whose option is that of an earlier class.
SKIPPED = {
    TrainingSettings: {"preset", "task", "model", "recipe", "task_settings"},
    TrainingRecipe: {"max_steps"},
    TransformerConfig: {"vocab_size", "target_vocab_size", "max_length"},
    TranslationSettings: set(),
}


@pytest.mark.parametrize(
    "kind, field",
    [(k, n) for k, skipped in SKIPPED.items() for n in settings_fields(k) if n not in skipped],
)
def test_every_option_reaches_its_field(kind, field):
    option = SETTINGS[{"tokenizer": "vocabulary_type"}.get(field, field)]
    value = different_value(option.type, settings_fields(kind)[field].default)
    text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
    words = ["--preset", "base", option.flag, text]
    if isinstance(value, bool):
        words = [*words[:2], option.flag if value else option.flag.replace("--", "--no-")]
    if field == "lora":  # It adapts a model.
        words += ["--start-from", "model"]
    settings = training_settings(parse(*words))
    found = {TransformerConfig: settings.model, TrainingRecipe: settings.recipe}
    found[TranslationSettings] = settings.task_settings
    assert found.get(kind, vars(settings))[field] == value


def test_the_defaults_are_those_of_the_library():
    settings = training_settings(parse("--preset", "base"))
    settings = get_task("translation").check_settings(settings)
    assert settings == get_task("translation").check_settings(TrainingSettings(preset="base"))
    assert TrainingRecipe.from_dict(settings.recipe) == TrainingRecipe()


@pytest.mark.parametrize("options, tokenize", [
    (["--target-language", "th"], "char"), (["--target-language", "de"], None),
    (["--target-language", "zh", "--bleu-tokenize", "char"], "char"), ([], None),
])  # fmt: skip
def test_the_target_language_chooses_the_tokenizer_of_bleu(options, tokenize):
    values = parse("--source", "a", "--target", "b", "--output", "out", *options)
    commands = commands_of(get_task("translation"))
    assert commands.data_kind(values) == "source"
    assert training_settings(values).task_settings.get("bleu_tokenize") == tokenize
