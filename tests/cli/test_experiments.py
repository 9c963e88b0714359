"""`train --experiment` and `--plan`: the settings by name, overruled, and what they take."""

import re

import pytest

from keras_transformer.cli.application import build_parser
from keras_transformer.cli.settings import resolve, training_settings
from keras_transformer.models import TrainingRecipe, get_preset


def parse(arguments):
    return resolve(build_parser("train").parse_args(["train", *arguments.split()]))


# The paper's sections 5.1 to 5.4 and 6.1: set, pieces, dropout, steps, averaged checkpoints.
PAPER = {
    "wmt14-en-de-base": ("wmt14_translate/de-en", "de", 37_000, 512, 0.1, 100_000, 5),
    "wmt14-en-de-big": ("wmt14_translate/de-en", "de", 37_000, 1024, 0.3, 300_000, 20),
    "wmt14-en-fr-base": ("wmt14_translate/fr-en", "fr", 32_000, 512, 0.1, 100_000, 5),
    "wmt14-en-fr-big": ("wmt14_translate/fr-en", "fr", 32_000, 1024, 0.1, 300_000, 20),
}
# Section 6.3: preset, pieces, dropout, warm-up steps.
PARSERS = {
    "wsj-parsing": ("parsing", 16_000, 0.2, 16_000),
    "wsj-parsing-semi-supervised": ("parsing_semi_supervised", 32_000, 0.1, 4_000),
}


def settings_of(values):
    """Returns the settings of `train`, and all of the model's and of the recipe's."""
    settings = training_settings(values)
    preset = get_preset(settings.preset)
    config = {"d_model": 512, "dropout": 0.1, **preset.config, **settings.model}
    recipe = TrainingRecipe.from_dict({**preset.recipe.to_dict(), **settings.recipe})
    return settings, config, recipe


@pytest.mark.parametrize("name", PARSERS)
def test_an_experiment_of_a_parser_is_the_papers(name):
    expected, pieces, dropout, warmup_steps = PARSERS[name]
    values = parse(f"--experiment {name} --trees train --valid-trees dev --output out")
    settings, config, recipe = settings_of(values)
    assert (settings.task, settings.preset) == ("parsing", expected)
    assert (settings.vocab_size, settings.tokenizer) == (pieces, "bpe")
    linearization = settings.task_settings["linearization"]
    assert not any(linearization[part] for part in ("words", "tags", "numbers"))
    assert (config["num_encoder_layers"], config["d_model"]) == (4, 1024)
    assert (config["dropout"], recipe.warmup_steps) == (dropout, warmup_steps)
    assert (recipe.beam_size, recipe.length_penalty, recipe.max_length) == (21, 0.3, 512)
    assert settings.max_steps == 100_000


@pytest.mark.parametrize("name", PAPER)
def test_an_experiment_is_the_papers(name):
    dataset, target, pieces, d_model, dropout, steps, averaged = PAPER[name]
    values = parse(f"--experiment {name}")
    settings, config, recipe = settings_of(values)
    assert (values["dataset"], values["source_language"]) == (dataset, "en")
    assert (values["target_language"], values["valid_split"]) == (target, "validation")
    vocabulary = (settings.vocab_size, settings.tokenizer, settings.shared_vocabulary)
    assert vocabulary == (pieces, "bpe", True)
    assert (config["d_model"], config["dropout"]) == (d_model, dropout)
    assert (settings.max_steps, recipe.average_checkpoints) == (steps, averaged)
    assert (recipe.tokens_per_batch, recipe.beam_size, recipe.length_penalty) == (25_000, 4, 0.6)
    assert (recipe.label_smoothing, recipe.warmup_steps) == (0.1, 4_000)
    assert recipe.peak_learning_rate is None
    assert not settings.select_best


def test_a_plan_says_what_will_run(succeed, unmeasured):
    command = "train --experiment wmt14-en-fr-base --plan --gpus 4 --d-model 64"
    command += " --intermediate-dim 128 --num-encoder-layers 1 --num-decoder-layers 1"
    output = succeed(*command.split()).output
    lines = {line[:20].strip(): line[20:] for line in output.splitlines()}
    assert lines["experiment"] == "wmt14-en-fr-base: English-French, the base model"
    assert lines["data"].startswith("wmt14_translate/fr-en, en to fr: train, validated on valid")
    assert lines["vocabulary"] == "32,000 bpe pieces for both languages"
    assert lines["steps"] == "100,000"
    assert lines["devices"] == "4, each with 6,250 + 6,250 tokens of a batch"
    assert "512 + 512 tokens on this machine's" in lines["measured"]
    assert lines["time"].endswith("for 100,000 steps on 4 such devices")


@pytest.mark.parametrize("optimizer, seconds", [("adam", "6.1 s"), ("muon", "6.4 s")])
def test_a_plan_multiplies_what_grows_with_the_batch_alone(
    succeed, unmeasured, optimizer, seconds, monkeypatch
):
    """The batch is 6,250 / 512 times that of the measured step, of which Muon takes 0.3 s."""
    monkeypatch.setattr("keras_transformer.models.processor.device_kind", lambda: "CPU")
    monkeypatch.setattr("keras_transformer.cli.plan._free_memory", lambda: None)
    command = f"train --experiment wmt14-en-fr-base --plan --gpus 4 --optimizer {optimizer}"
    assert f"in proportion {seconds} for 6,250" in succeed(*command.split()).output


@pytest.mark.parametrize(
    "memory, expected, num_ways",
    [
        ("2", "no, not in 2 GB; these would: --micro-batches 3: --gpus 3: --tokens-per-batch", 3),
        ("0.04", "no, not in 0.04 GB: leave too little room", 0),
    ],
)
def test_a_plan_says_whether_a_step_fits(run, unmeasured, memory, expected, num_ways):
    """Every way that is named does fit, by the same plan."""
    plan = ["train", "--plan", "--preset", "tiny", "--tokens-per-batch", "25000"]
    plan += ["--num-encoder-layers", "1", "--num-decoder-layers", "1"]
    output = run(*plan, "--device-memory", memory).output
    assert all(text in output for text in expected.split(": "))
    ways = [line.split(":")[0].split() for line in output.splitlines() if line[20:24] == "  --"]
    assert len(ways) == num_ways
    for way in ways:
        output = run(*plan, *way, "--device-memory", memory).output
        assert f"yes, in {memory} GB" in output, way


def test_a_plan_counts_both_passes_of_r_drop(run, unmeasured):
    plan = ["train", "--plan", "--preset", "tiny", "--tokens-per-batch", "25000"]
    simple, doubled = (
        re.search(r"operations +(\S+).*?(\S+) GB  activations", run(*plan, *more).output, re.S)
        for more in ([], ["--r-drop", "5"])
    )
    for figure, twice in zip(simple.groups(), doubled.groups(), strict=True):
        assert abs(float(twice) / float(figure) - 2) < 0.1  # They are printed with two digits.
