"""TrainingSettings: validated, saved, and compared with those a directory was started with."""

import dataclasses
import json

import pytest

from keras_transformer.errors import UserError
from keras_transformer.settings.presets import TrainingRecipe
from keras_transformer.settings.transformer_config import TransformerConfig
from keras_transformer.training import TrainingSettings

DATA = {"pairs": 10, "checksum": 5}


@pytest.mark.parametrize("changes", [{"task": "tagging"}, {"linearization": {"tags": True}}])
def test_a_task_and_its_settings_are_checked(changes):
    (name,) = changes
    with pytest.raises(ValueError, match=f"Received: {name}="):
        TrainingSettings(**changes)


def test_parsing_has_two_vocabularies_and_a_whole_linearization():
    settings = TrainingSettings(task="parsing", linearization={"tags": True})
    assert settings.shared_vocabulary is False
    assert settings.linearization == {
        "words": False, "tags": True, "labelled_closing": True, "root_label": "S", "numbers": False,
        "max_unary": 8,
    }  # fmt: skip
    assert TrainingSettings.from_dict(settings.to_dict()) == settings
    with pytest.raises(ValueError, match="Received: color"):
        TrainingSettings(task="parsing", linearization={"color": True})
    with pytest.raises(ValueError, match="bpe_dropout=0.1 with task='parsing'"):
        TrainingSettings(task="parsing", bpe_dropout=0.1)
    with pytest.raises(ValueError, match="Received: bpe_dropout=0.1 with tokenizer='subword'"):
        TrainingSettings(tokenizer="subword", bpe_dropout=0.1)


def test_a_training_of_before_there_was_parsing_is_resumed(tmp_path):
    """Its file has none of the newer settings."""
    TrainingSettings().save(tmp_path, DATA)
    path = tmp_path / "training.json"
    content = json.loads(path.read_text())
    for name in ("task", "linearization", "f1_every", "f1_beam_size", "f1_trees"):
        del content["settings"][name]
    path.write_text(json.dumps(content))
    TrainingSettings().check_resumes(tmp_path, DATA)
    with pytest.raises(UserError, match="task was 'translation', now 'parsing'"):
        TrainingSettings(task="parsing").check_resumes(tmp_path, DATA)


@pytest.mark.parametrize(
    "part, values, added, reason",
    [
        ("config", TransformerConfig(vocab_size=20).to_dict(), {"max_distance": 3}, "16, now 3"),
        ("train_recipe", TrainingRecipe().to_dict(), {"ema_momentum": 0.9}, "None, now 0.9"),
    ],
)
def test_a_training_from_before_a_setting_is_resumed(part, values, added, reason, tmp_path):
    older = {name: value for name, value in values.items() if name not in added}
    TrainingSettings().save(tmp_path, {**DATA, part: older})
    TrainingSettings().check_resumes(tmp_path, {**DATA, part: values})
    [name] = added
    with pytest.raises(UserError, match=f"{name} was {reason}"):
        TrainingSettings().check_resumes(tmp_path, {**DATA, part: {**values, **added}})


def test_limits_may_change_when_a_training_is_resumed(tmp_path):
    settings = TrainingSettings(max_steps=5, average_windows=(2,))
    settings.save(tmp_path, DATA)
    settings.check_resumes(tmp_path, DATA)
    changed = dataclasses.replace(settings, max_steps=9, max_minutes=3.0, gpus=2)
    changed.check_resumes(tmp_path, DATA)


@pytest.mark.parametrize("changes, data, named", [
    ({"seed": 9}, {}, "seed was 1, now 9"),
    ({"recipe": {"warmup_steps": 7}}, {}, "warmup_steps was"),
    ({"seed": 9}, {"pairs": 11}, "seed was 1, now 9; pairs was 10, now 11"),
    ({}, {"pairs": 11}, "training text differs .*, of 10 pairs.* Received: .* of 11 pairs"),
    ({}, {"checksum": 6}, "training text differs .* another output directory .* of 10 pairs"),
])  # fmt: skip
def test_other_settings_and_data_are_named(tmp_path, changes, data, named):
    TrainingSettings().save(tmp_path, DATA)
    with pytest.raises(UserError, match=named):
        TrainingSettings(**changes).check_resumes(tmp_path, {**DATA, **data})


def test_only_the_field_of_the_model_that_differs_is_named(tmp_path):
    config = {"d_model": 16, "activation": "gelu", "dropout": 0.1}
    before = TrainingSettings(model={"activation": "gelu"})
    before.save(tmp_path, {**DATA, "config": config})
    with pytest.raises(UserError) as error:
        TrainingSettings().check_resumes(
            tmp_path, {**DATA, "config": {**config, "activation": "relu"}}
        )
    assert ": activation was 'gelu', now 'relu'. Use" in str(error.value)
    # A setting that says what the preset says already changes nothing.
    TrainingSettings(model={"activation": "gelu", "d_model": 16}).check_resumes(
        tmp_path, {**DATA, "config": config}
    )


def test_a_training_of_before_line_ends_were_compared_is_resumed(tmp_path):
    TrainingSettings().save(tmp_path, DATA)
    TrainingSettings().check_resumes(tmp_path, {**DATA, "line_ends": 1})
    TrainingSettings().save(tmp_path, {**DATA, "line_ends": 1})
    with pytest.raises(UserError, match="The training text differs"):
        TrainingSettings().check_resumes(tmp_path, {**DATA, "line_ends": 2})


@pytest.mark.parametrize("content", ["", "{", "[]", '{"settings": {}}', '{"settings": 1}'])
def test_a_damaged_file_is_one_line(tmp_path, content):
    (tmp_path / "training.json").write_text(content)
    with pytest.raises(UserError, match=r"training.json.*damaged"):
        TrainingSettings().check_resumes(tmp_path, DATA)
