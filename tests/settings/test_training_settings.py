"""TrainingSettings: validated, saved, and compared with those a directory was started with."""

import json

import pytest

from keras_transformer.errors import UserError
from keras_transformer.inference.tasks import get_task
from keras_transformer.settings.transformer_config import TransformerConfig
from keras_transformer.training import TrainingSettings

DATA = {"pairs": 10, "checksum": 5}


@pytest.mark.parametrize("changes, received", [
    ({"task_settings": {"f1_every": 1}}, "f1_every"),
    ({"task_settings": {"bleu_tokenize": "14a"}}, "bleu_tokenize='14a'"),
    ({"task": "parsing", "bpe_dropout": 0.1}, "bpe_dropout=0.1 with task='parsing'"),
])  # fmt: skip
def test_a_task_checks_its_settings(changes, received):
    settings = TrainingSettings(**changes)
    with pytest.raises(ValueError, match=f"Received: {received}$"):
        get_task(settings.task).check_settings(settings)


@pytest.mark.parametrize("task, own", [
    ("translation", {"bleu_every": 2, "bleu_tokenize": "char"}),
    ("parsing", {"f1_every": 3, "linearization": {"tags": True}}),
])  # fmt: skip
def test_a_dict_of_version_1_has_the_settings_of_all_tasks_beside_the_others(task, own):
    flat = {"bleu_every": 2, "bleu_tokenize": "char"}
    flat |= {"f1_every": 3, "linearization": {"tags": True}}
    settings = TrainingSettings.from_dict({"preset": "tiny", "task": task, **flat})
    assert settings == TrainingSettings("tiny", task=task, task_settings=own)


def test_a_training_of_version_1_is_resumed(tmp_path):
    """The file of its first release has no settings of parsing."""
    TrainingSettings().save(tmp_path, DATA)
    path = tmp_path / "training.json"
    content = json.loads(path.read_text())
    del content["settings"]["task_settings"], content["settings"]["task"]
    path.write_text(json.dumps(content))
    TrainingSettings().check_resumes(tmp_path, DATA)
    with pytest.raises(UserError, match="task was 'translation', now 'parsing'"):
        TrainingSettings(task="parsing").check_resumes(tmp_path, DATA)
    content["settings"] |= {"task": "parsing", "f1_every": 2, "linearization": {"tags": False}}
    path.write_text(json.dumps(content))
    settings = TrainingSettings(task="parsing", task_settings={"f1_every": 1})
    form = {"tags": False, "joined": False}
    settings.check_resumes(tmp_path, DATA | {"linearization": form})
    with pytest.raises(UserError, match="tags was False, now True"):
        settings.check_resumes(tmp_path, DATA | {"linearization": form | {"tags": True}})
    now = DATA | {"linearization": {"tags": False, "joined": True}, "target_tokens": 3}
    with pytest.raises(UserError, match="other settings: joined was False, now True; target_tok"):
        settings.check_resumes(tmp_path, now)


def test_a_training_from_before_a_setting_is_resumed(tmp_path):
    config = TransformerConfig(vocab_size=20).to_dict()
    older = {name: value for name, value in config.items() if name != "max_distance"}
    TrainingSettings().save(tmp_path, {**DATA, "config": older})
    TrainingSettings(max_steps=5).check_resumes(tmp_path, {**DATA, "config": config})
    with pytest.raises(UserError, match="max_distance was 16, now 3"):
        TrainingSettings().check_resumes(
            tmp_path, {**DATA, "config": {**config, "max_distance": 3}}
        )


@pytest.mark.parametrize("changes, data, named", [
    ({"seed": 9}, {"pairs": 11}, "seed was 1, now 9; pairs was 10, now 11"),
    ({"micro_batches": 16}, {"row_multiple": 16}, "one that divides 8.*than gpus=None, .*es=1"),
    ({}, {"checksum": 6}, "training text differs .* another output directory .* of 10 pairs"),
])  # fmt: skip
def test_other_settings_and_data_are_named(tmp_path, changes, data, named):
    TrainingSettings().save(tmp_path, DATA)
    with pytest.raises(UserError, match=named):
        TrainingSettings(**changes).check_resumes(tmp_path, {**DATA, **data})


def test_a_damaged_file_is_one_line(tmp_path):
    (tmp_path / "training.json").write_text('{"settings": {}}')
    with pytest.raises(UserError, match=r"training.json.*damaged"):
        TrainingSettings().check_resumes(tmp_path, DATA)
