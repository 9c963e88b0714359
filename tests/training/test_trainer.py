"""train: a model directory that translates, resumed after an interruption, refused when changed."""

import json
import random
import re
import shutil
from typing import ClassVar

import keras
import numpy as np
import pytest

from keras_transformer.data import PairsCorpus, load_tokenizer, prepare_corpus
from keras_transformer.data.mixed_corpus import hold_out
from keras_transformer.errors import UserError
from keras_transformer.losses import LossModel
from keras_transformer.models.weight_files import read_weights
from keras_transformer.training import TrainingSettings, load_weights_only, train
from keras_transformer.training.metrics import TokenEvaluation, TokenEvaluator
from keras_transformer.training.scores import ScoreOnDev
from keras_transformer.translation.task import TranslationTask
from tests.closeness import assert_all_close
from tests.training.uncompiled import AtStep, uncompiled

# What compiled steps do is tested in test_resume_to_the_bit.py and tests/parsing/test_training.py.
pytestmark = [
    pytest.mark.tensorflow_only("`train` reads its data with tf.data"),
    pytest.mark.usefixtures("uncompiled"),
]

WORDS = [chr(code) for code in range(ord("a"), ord("f"))]
SMALL = {
    "num_encoder_layers": 1,
    "num_decoder_layers": 1,
    "d_model": 8,
    "intermediate_dim": 16,
    "num_heads": 2,
    "dropout": 0.1,
}
RECIPE = {
    "tokens_per_batch": 128,
    "warmup_steps": 20,
    "peak_learning_rate": 1e-2,
    "average_checkpoints": 2,
    "beam_size": 2,
    "length_normalization": "gnmt",
}


def corpus(seed, size=64):
    """Pairs to copy: source and target are the same two to four words."""
    generator = random.Random(seed)
    lines = [" ".join(generator.choices(WORDS, k=generator.randint(2, 4))) for _ in range(size)]
    return PairsCorpus([(line, line) for line in lines])


def settings(**changes):
    values = {
        "preset": "tiny",
        "model": SMALL,
        "recipe": RECIPE,
        "tokenizer": "subword",
        "vocab_size": None,
        "max_steps": 6,
        "evaluate_every": 3,
        "checkpoint_every": 3,
        "bleu_every": 0,
    }
    return TrainingSettings.from_dict({**values, **changes})


def run(directory, lines=None, callbacks=(), also_valid=None, **changes):
    report = (lambda line: None) if lines is None else lines.append
    options = {"callbacks": callbacks, "report": report, "also_valid": also_valid}
    return train(directory, corpus(1), corpus(2, 8), settings(**changes), **options)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A directory after six steps, the result and the reported lines, with steps between them."""
    directory, lines = tmp_path_factory.mktemp("finished") / "model", []
    with uncompiled():
        result = train(
            directory,
            corpus(1),
            corpus(2, 8),
            settings(max_minutes=9.0, patience=4, keep_checkpoints=1, average_windows=(3,)),
            report=lines.append,
            progress=lambda step, *_: lines.append(step),
        )
    return directory, result, lines


@pytest.fixture
def directory(finished, tmp_path):
    """A copy of the finished directory, to be changed."""
    return shutil.copytree(finished[0], tmp_path / "model")


def test_writes_a_model_directory_with_history_and_settings(finished):
    directory, result, lines = finished
    assert {path.name for path in directory.iterdir()} == {
        "config.json",
        "model.weights.h5",
        "tokenizer.txt",
        "recipe.json",
        "training.json",
        "history.csv",
        "checkpoints",
    }
    assert result.steps == 6
    assert [row["step"] for row in result.history] == ["3", "6"]
    assert "valid_bleu" in result.history[0] and "valid_f1" not in result.history[0]
    assert all(float(row["valid_loss"]) > 0 for row in result.history)
    recipe = json.loads((directory / "recipe.json").read_text())
    assert (recipe["max_steps"], recipe["average_checkpoints"]) == (6, 3)
    assert any(str(line).startswith("step 6") for line in lines)
    assert [line for line in lines if isinstance(line, int)] == list(range(7))
    parameters = sum(value.size for value in result.translator.model.get_weights())
    model = rf"Model tiny: 1 \+ 1 layers, d_model 8, {parameters:,} parameters, on (the CPU|.*GPU)"
    assert re.match(model, lines[lines.index(0) - 2])
    end = "Allow more steps to go on. It learned little: the learning rate rises until step 20."
    assert f"The training ends: all 6 steps are done. {end}" in lines
    lengths = [len(source.split()) for source, _ in corpus(1)]
    profile = json.loads((directory / "config.json").read_text())["sentence_profile"]
    assert profile["longest"] == max(lengths) and profile["single_sentences"]
    assert result.translator.sentence_profile.to_dict() == profile | {"abbreviations": []}


def test_a_training_starts_from_the_weights_and_tokenizers_of_a_model(tmp_path, finished):
    """With data that its tokenizers encoded."""
    prepared = prepare_corpus(tmp_path / "data", corpus(1), None, load_tokenizer(finished[0]))
    still = {**RECIPE, "peak_learning_rate": 1e-9}
    start = {"start_from": str(finished[0]), "model": {"dropout": 0.3}, "recipe": still}
    given = {"source_tokenizer": prepared.source_tokenizer}
    train(tmp_path / "still", prepared.read("train"), None, settings(**start, max_steps=1), **given)
    expected, found = (
        read_weights(path / "model.weights.h5") for path in (finished[0], tmp_path / "still")
    )
    assert_all_close(found, expected)
    config = json.loads((tmp_path / "still" / "config.json").read_text())["model"]
    assert config["d_model"] == 8 and config["dropout"] == 0.3


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"model": {"d_model": 16}}, "must not change the weights of the model to start from"),
        ({"start_from": "missing"}, "Model directory not found: 'missing'"),
    ],
)
def test_a_model_that_a_training_cannot_start_from_is_refused(tmp_path, finished, changes, message):
    changes = {"start_from": str(finished[0]), "model": {}} | changes
    with pytest.raises(UserError, match=message):
        run(tmp_path / "model", **changes)
    assert not (tmp_path / "model").exists()


def test_a_finished_training_says_so_before_it_reads(directory):
    lines = []
    assert run(directory, lines).steps == 6
    line = "With the same text, nothing is left to train: all 6 steps are done."
    assert lines[0] == f"{line} Allow more steps to go on."
    assert sum("nothing is left" in line for line in lines) == 1


def test_results_on_another_validation_set_do_not_count(tmp_path, monkeypatch):
    made_up(monkeypatch, [1, 2, 9, 8])
    lines, changes = [], {"evaluate_every": 1, "checkpoint_every": 1, "patience": 2}
    assert run(tmp_path, max_steps=2, **changes).steps == 2
    chosen, other = settings(max_steps=4, **changes), corpus(3, 8)
    result = train(tmp_path, corpus(1), other, chosen, report=lines.append)
    assert result.steps == 4  # With the loss of step 2, the patience would end at step 3.
    line = "The validation set or its scores changed: earlier results do not count."
    assert lines.count(line) == 1
    saved = json.loads((tmp_path / "training.json").read_text())["settings"]
    assert saved["max_steps"] == 4


def test_files_of_the_user_are_not_overwritten(tmp_path):
    (tmp_path / "valid.source").write_text("mine")
    whole, held_out = hold_out(corpus(1))
    with pytest.raises(UserError, match="holds valid.source .*nothing in it is overwritten"):
        train(tmp_path, whole, held_out, settings())
    assert run(tmp_path, max_steps=1).steps == 1  # which holds no pairs out
    assert (tmp_path / "valid.source").read_text() == "mine"


class Score(ScoreOnDev):
    """Scores that are made up."""

    name, label, answer_name = "bleu", "BLEU", "translation"
    figure_labels: ClassVar = {"chrf": "chrF"}

    def __init__(self, scores, every=1):
        super().__init__(every)
        self.scores = iter(scores)

    def evaluate(self, model=None):
        return next(self.scores, 0.0)

    def figures(self):
        return {"chrf": 12.3}

    def samples(self, number):
        return [("a b", "b", "a b"), ("c " * 200, "d", "c")][:number]


def made_up(patch, losses, scores=None, every=1):
    """Lets evaluations see these losses, and scores if there are any."""
    losses = iter(losses)
    patch.setattr(
        TokenEvaluator, "__call__", lambda *_: TokenEvaluation(next(losses, 9.0), 2.0, 0.5, 9)
    )
    if scores is not None:
        patch.setattr(TranslationTask, "make_score", lambda *_: Score(scores, every))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("losses", "scores", "steps"),
    [
        ([3, 3.5, 4, 5], [1, 2, 1, 1], 4),  # The score is better at step 2.
        ([3, 3.5, 2, 4, 5], [1, 1, 1, 1, 1], 5),  # The loss is, at step 3.
    ],
)
def test_patience_waits_for_losses_and_scores(tmp_path, monkeypatch, losses, scores, steps):
    made_up(monkeypatch, losses, scores)
    lines, recipe = [], {**RECIPE, "average_checkpoints": 1}
    changes = {"evaluate_every": 1, "checkpoint_every": 4, "max_steps": 8, "bleu_every": 1}
    assert run(tmp_path, lines, recipe=recipe, patience=2, **changes).steps == steps
    assert any("the patience of 2 validations is used up" in line for line in lines)


@pytest.mark.parametrize("losses, end, bleu_every, gain", [
    ([3, 3.5, 2], "The validation was still improving.", 0, ""),
    ([3, 2, 4], "The last validation {}.", 1, "improved neither loss nor score"),
    ([3, 3.5, 4], "The last 2 validations {}.", 0, "did not improve the loss"),
    # No evaluation has a score yet.
    ([3, 3.5, 4], "The last 2 validations {}.", 4, "did not improve the loss"),
])  # fmt: skip
def test_the_end_says_whether_more_steps_may_help(
    tmp_path, monkeypatch, losses, end, bleu_every, gain
):
    made_up(monkeypatch, losses, [0] * 3 if bleu_every else None, bleu_every)
    lines, recipe = [], {**RECIPE, "warmup_steps": 1}
    # The third evaluation is that of the last step.
    changes = {"evaluate_every": 2, "max_steps": 5, "bleu_every": bleu_every}
    run(tmp_path, lines, recipe=recipe, **changes)
    reason = "all 5 steps are done. Allow more steps to go on."
    assert f"The training ends: {reason} {end.format(gain)}" in lines
    lines.clear()
    run(tmp_path, lines, recipe=recipe, **changes | {"max_steps": 4})
    reason = "5 steps are done, more than the 4 allowed. Allow more steps to go on."
    assert f"The training ends: {reason} {end.format(gain)}" in lines


def test_without_a_score_the_best_loss_chooses_the_weights(tmp_path, monkeypatch):
    # Two validations, the average of two checkpoints, the last step, and the best validation.
    made_up(monkeypatch, [1.0, 5.0, 4.0, 4.0, 1.0])
    lines = []
    run(tmp_path, lines)
    assert lines[-1] == "Final weights: best at an evaluation."
    files = "model.weights.h5", "checkpoints/step-00000003.weights.h5"
    assert_all_close(*(read_weights(tmp_path / name) for name in files))


def test_a_setting_that_changes_the_text_is_named(tmp_path):
    run(tmp_path, recipe={**RECIPE, "max_length": 4}, max_steps=1)
    with pytest.raises(UserError, match="other settings: max_length was 4, now 256"):
        run(tmp_path, max_steps=1)


def test_another_number_of_vocabularies_is_named(tmp_path):
    run(tmp_path, shared_vocabulary=False, max_steps=1)
    with pytest.raises(UserError, match="shared_vocabulary was False, now True"):
        run(tmp_path, max_steps=1)


def test_other_settings_on_the_same_directory_are_refused_in_one_line(directory):
    before = sorted(path.name for path in directory.rglob("*"))
    with pytest.raises(UserError, match="packed_width was 0, now 16") as error:
        run(directory, packed_width=16)
    assert "\n" not in str(error.value)
    assert sorted(path.name for path in directory.rglob("*")) == before


@pytest.mark.parametrize("changes, message", [
    ({"deterministic": True}, "`deterministic` needs the TensorFlow backend. Received: .*'torch'"),
    ({"streams": 2}, "Steps in parts need the TensorFlow backend"),
])  # fmt: skip
def test_what_only_tensorflow_does_is_refused_elsewhere(tmp_path, monkeypatch, changes, message):
    monkeypatch.setattr(keras.backend, "backend", lambda: "torch")
    with pytest.raises(UserError, match=message):
        run(tmp_path / "model", **changes)
    assert not (tmp_path / "model").exists()


def test_no_round_waits_for_the_iterator_of_the_last(tmp_path, monkeypatch):
    datasets, fit = [], LossModel.fit
    monkeypatch.setattr(
        LossModel, "fit", lambda self, x, **rest: (datasets.append(x), fit(self, x, **rest))[1]
    )
    run(tmp_path / "model", max_steps=2, checkpoint_every=1)
    # Else the thread of autotuning may miss its end, and sleeps for up to a minute then.
    assert [dataset.options().autotune.enabled for dataset in datasets] == [False, False]


def test_float16_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(keras.config, "dtype_policy", lambda: keras.DTypePolicy("mixed_float16"))
    with pytest.raises(UserError, match="in float32, or in bfloat16 .* policy 'mixed_float16'"):
        run(tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("select_best", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_average_is_final_whatever_is_better_unless_the_best_is_selected(tmp_path, select_best):
    often = {"evaluate_every": 1, "checkpoint_every": 1}
    recipe = {
        **RECIPE,
        "warmup_steps": 1,
    }  # each step is better than the average with the one before
    result = run(tmp_path, max_steps=3, recipe=recipe, select_best=select_best, **often)
    second, third = (
        read_weights(tmp_path / "checkpoints" / f"step-0000000{step}.weights.h5") for step in (2, 3)
    )
    final = read_weights(tmp_path / "model.weights.h5")
    mean = {name: (second[name] + third[name]) / 2 for name in third}
    assert_all_close(final, third if select_best else mean)
    losses = [float(row["valid_loss"]) for row in result.history]
    assert (result.valid_loss == pytest.approx(losses[-1], abs=1e-4)) == select_best


def break_weights(model):
    """Puts NaN into a weight, as a gradient does that overflows."""
    variable = model.trainable_variables[0]
    variable.assign(np.full(variable.shape, np.nan))


def test_weights_that_are_no_numbers_are_never_saved(tmp_path):
    changes = {"max_steps": 2, "evaluate_every": 1, "checkpoint_every": 1}
    with pytest.raises(UserError, match="at step 2: the training has diverged"):
        run(tmp_path, callbacks=[AtStep(2, break_weights, before=True)], **changes)
    assert [path.name for path in (tmp_path / "checkpoints").glob("step-*")] == [
        "step-00000001.weights.h5"
    ]
    saved = read_weights(tmp_path / "checkpoints" / "step-00000001.weights.h5")
    assert all(np.isfinite(weight).all() for weight in saved.values())


def test_a_damaged_checkpoint_does_not_stop_an_evaluation(tmp_path, caplog, monkeypatch):
    made_up(monkeypatch, [3.0, 3.0], [1.0, 1.0])
    damaged = tmp_path / "checkpoints" / "step-00000001.weights.h5"
    damage = AtStep(2, lambda _: damaged.write_bytes(damaged.read_bytes()[:1000]), before=True)
    changes = {"max_steps": 3, "checkpoint_every": 1, "evaluate_every": 2, "bleu_every": 1}
    lines = []
    result = run(tmp_path, lines, callbacks=[damage], **changes)
    assert [(row["step"], row["averaged"]) for row in result.history][0] == ("2", "1")
    assert any("BLEU 1.00  chrF 12.30" in line for line in lines)
    assert result.history[0]["valid_chrf"] == "12.3"
    assert "average is left out" in caplog.text and damaged.name in caplog.text


class Events(keras.callbacks.Callback):
    """Records its calls, with the mean losses at the end of epochs."""

    def __init__(self):
        super().__init__()
        self.events, self.losses = [], []

    def on_train_begin(self, logs=None):
        self.events.append("begin")

    def on_train_end(self, logs=None):
        self.events.append("end")

    def on_epoch_begin(self, epoch, logs=None):
        self.events.append(f"epoch {epoch}")

    def on_train_batch_end(self, batch, logs=None):
        self.events.append(batch)

    def on_epoch_end(self, epoch, logs=None):
        self.events.append(f"end of {epoch}")
        self.losses.append(logs["loss"])


def test_callbacks_see_one_training_whose_epochs_end_at_evaluations(tmp_path):
    callback = Events()
    changes = {"max_steps": 3, "evaluate_every": 2, "checkpoint_every": 1}
    history = run(tmp_path, callbacks=[callback], **changes).history
    expected = ["begin", "epoch 0", 0, 1, "end of 0", "epoch 1", 0, "end of 1", "end"]
    assert callback.events == expected
    assert [f"{loss:.5f}" for loss in callback.losses] == [
        f"{float(row['train_loss']):.5f}" for row in history
    ]


class EachStep(keras.callbacks.Callback):
    """Keeps the weights after each step."""

    def on_train_begin(self, logs=None):
        self.weights = []

    def on_train_batch_end(self, batch, logs=None):
        self.weights.append(
            [one.numpy().astype("float64") for one in self.model.trainable_variables]
        )


def test_the_moving_average_of_the_steps_is_a_candidate_that_can_be_chosen(tmp_path, monkeypatch):
    # Two validations, the average of two checkpoints, the last step, the best validation, and the
    # moving average.
    made_up(monkeypatch, [5.0, 5.0, 4.0, 4.0, 6.0, 3.0])
    each, lines, recipe = EachStep(), [], {**RECIPE, "ema_momentum": 0.75}
    model = run(tmp_path, lines, [each], recipe=recipe).translator.model
    assert lines[-2:] == [
        "moving average of the weights: validation loss 3.000",
        "Final weights: moving average of the weights.",
    ]
    average = each.weights[0]
    for weights in each.weights[1:]:
        average = [0.75 * old + 0.25 * new for old, new in zip(average, weights, strict=True)]
    for file, expected in (
        ("model.weights.h5", average),
        ("checkpoints/step-00000006.weights.h5", each.weights[-1]),
    ):
        load_weights_only(model, tmp_path / file)
        assert_all_close(model.get_weights(), expected)
    assert not list(tmp_path.glob("checkpoints/average*"))
