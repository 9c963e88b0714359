"""train: a model directory that translates, resumed after an interruption, refused when changed."""

import json
import random
import re
import shutil
import sys

import keras
import numpy as np
import pytest

from keras_transformer.data import (
    MixedCorpus,
    PairsCorpus,
    SubwordTokenizer,
    load_tokenizer,
    prepare_corpus,
)
from keras_transformer.errors import UserError
from keras_transformer.models.weight_files import read_weights
from keras_transformer.parsing import TreebankCorpus
from keras_transformer.training import TrainingSettings, train
from keras_transformer.training.metrics import TokenEvaluation, TokenEvaluator
from keras_transformer.training.scores_on_dev import ScoreOnDev
from keras_transformer.translation.task import TranslationTask
from tests.closeness import assert_all_close
from tests.training.uncompiled import AtStep, interrupt, uncompiled

# What compiled steps do is tested in test_packed_training.py, test_parsing.py, test_loss_model.py.
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
    end = "Allow more steps to go on. It learned little: the learning rate rises until step 20."
    assert f"The training ends: all 6 steps are done. {end}" in lines
    lengths = [len(source.split()) for source, _ in corpus(1)]
    profile = json.loads((directory / "config.json").read_text())["sentence_profile"]
    assert profile["longest"] == max(lengths) and profile["single_sentences"]
    assert result.translator.sentence_profile.to_dict() == profile | {"abbreviations": []}


@pytest.mark.slow  # test_stopping.py has one that a signal interrupts.
@pytest.mark.parametrize("interrupted_step", [3, 6])
@pytest.mark.parametrize("written", [False, True], ids=["before its row", "after its row"])
def test_an_evaluation_that_is_interrupted_is_done_by_the_next_run(
    tmp_path, finished, monkeypatch, interrupted_step, written
):
    def interrupt(line):
        if line.startswith(f"step {interrupted_step}"):
            raise KeyboardInterrupt

    evaluate, calls = TokenEvaluator.__call__, []

    def interrupted_evaluator(evaluator, batches):
        calls.append(1)
        if len(calls) == interrupted_step // 3:
            raise KeyboardInterrupt
        return evaluate(evaluator, batches)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        if not written:
            patch.setattr(TokenEvaluator, "__call__", interrupted_evaluator)
        train(tmp_path / "model", corpus(1), corpus(2, 8), settings(), report=interrupt)
    history, expected = run(tmp_path / "model").history, finished[1].history
    assert [row["step"] for row in history] == ["3", "6"]
    for name in ("train_loss", "learning_rate", "valid_loss", "valid_accuracy", "averaged"):
        assert [row[name] for row in history] == [row[name] for row in expected]


def test_a_training_starts_from_the_weights_and_tokenizers_of_a_model(tmp_path, finished):
    model, still = str(finished[0]), {**RECIPE, "peak_learning_rate": 1e-9}
    start = {"start_from": model, "model": {"dropout": 0.3}, "checkpoint_every": 1}
    run(tmp_path / "still", **start, recipe=still, max_steps=1)
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
        ({"task": "parsing"}, "must have the task 'parsing'.* with 'translation'"),
        ({"start_from": "missing"}, "Model directory not found: 'missing'"),
    ],
)
def test_a_model_that_a_training_cannot_start_from_is_refused(tmp_path, finished, changes, message):
    changes = {"start_from": str(finished[0]), "model": {}} | changes
    lines = corpus(1)
    if "task" in changes:
        trees = tmp_path / "trees"
        trees.write_text("(S (NP (PRP a)) (VP (VBZ b)))\n")
        lines = TreebankCorpus(trees)
    with pytest.raises(UserError, match=message):
        train(tmp_path / "model", lines, None, settings(**changes))
    assert not (tmp_path / "model").exists()


def test_a_model_to_start_from_takes_data_that_its_own_tokenizers_encoded(tmp_path, finished):
    tokenizer = load_tokenizer(finished[0])
    prepared = prepare_corpus(tmp_path / "prepared", corpus(1), None, tokenizer)
    start = settings(start_from=str(finished[0]), model={}, max_steps=1)
    given = {"source_tokenizer": prepared.source_tokenizer}
    assert train(tmp_path / "model", prepared.read("train"), None, start, **given).steps == 1


def test_a_finished_training_says_so_before_it_reads(directory):
    lines = []
    assert run(directory, lines).steps == 6
    line = "With the same text, nothing is left to train: all 6 steps are done."
    assert lines[0] == f"{line} Allow more steps to go on."
    assert sum("nothing is left" in line for line in lines) == 1


@pytest.mark.slow
def test_a_training_that_was_getting_better_says_so(tmp_path):
    lines, recipe = [], {**RECIPE, "warmup_steps": 2}
    run(tmp_path, lines, recipe=recipe)
    end = "Allow more steps to go on. The validation was still improving."
    assert f"The training ends: all 6 steps are done. {end}" in lines


@pytest.mark.slow
def test_minutes_that_are_used_up_are_said_at_once(tmp_path):
    run(tmp_path, max_minutes=1e-6, max_steps=2)
    lines = []
    assert (tmp_path / "model.weights.h5").is_file()
    assert run(tmp_path, lines, max_minutes=1e-6, max_steps=2).steps == 1
    assert "1e-06 minutes over all runs are used up. Allow more minutes" in lines[0]
    assert run(tmp_path, max_minutes=9.0, max_steps=2).steps == 2


def test_model_device_and_plan_are_said_before_the_first_step(finished):
    _, result, lines = finished
    parameters = sum(value.size for value in result.translator.model.get_weights())
    assert [line for line in lines if isinstance(line, int)] == list(range(7))
    said_before = lines[: lines.index(0)]
    model = rf"Model tiny: 1 \+ 1 layers, d_model 8, {parameters:,} parameters, on (the CPU|.*GPU)"
    assert re.match(model, said_before[-2])
    for part in ("until step 6 (", "for 9 minutes", "every 3 steps", "after 4 of them"):
        assert part in said_before[-1]


class Score(ScoreOnDev):
    """Scores that are made up."""

    name, label, answer_name = "bleu", "BLEU", "translation"

    def __init__(self, scores):
        super().__init__()
        self.scores = iter(scores)

    def evaluate(self, model=None):
        return next(self.scores, 0.0)

    def samples(self, number):
        return [("a b", "b", "a b"), ("c " * 200, "d", "c")][:number]


def made_up(patch, losses, scores):
    """Lets evaluations see these losses and scores."""
    losses = iter(losses)
    patch.setattr(
        TokenEvaluator, "__call__", lambda *_: TokenEvaluation(next(losses, 9.0), 2.0, 0.5, 9)
    )
    patch.setattr(TranslationTask, "make_score", lambda *_: Score(scores))


def run_with(losses, scores, directory, lines=None, patience=2):
    """Runs up to eight steps, each evaluated with these losses and scores."""
    changes = {"evaluate_every": 1, "checkpoint_every": 4, "max_steps": 8, "bleu_every": 1}
    recipe = {**RECIPE, "average_checkpoints": 1}
    with pytest.MonkeyPatch.context() as patch:
        made_up(patch, losses, scores)
        return run(directory, lines, recipe=recipe, patience=patience, **changes)


# The score is better at step 3, the loss at step 4, neither at steps 5 and 6.
LOSSES, SCORES = [3, 3.5, 4, 2, 5, 5], [1, 1, 2, 1, 1, 1]


@pytest.fixture(scope="module")
def impatient(tmp_path_factory):
    """A directory in which patience ended the training, the result and the lines."""
    directory, lines = tmp_path_factory.mktemp("impatient") / "model", []
    with uncompiled():
        return directory, run_with(LOSSES, SCORES, directory, lines), lines


@pytest.mark.slow
def test_the_same_command_stays_where_patience_ended_and_more_patience_goes_on(impatient, tmp_path):
    directory = shutil.copytree(impatient[0], tmp_path / "model")
    assert impatient[1].steps == run_with(LOSSES, SCORES, directory).steps == 6
    assert run_with(LOSSES, SCORES, directory, patience=50).steps == 8


@pytest.mark.slow
@pytest.mark.parametrize(
    ("losses", "scores", "steps"),
    [
        ([3, 3.5, 4, 4], [1, 1, 1, 1], 3),  # Neither is better at steps 2 and 3.
        ([3, 3.5, 4, 5], [1, 2, 1, 1], 4),  # The score is, at step 2.
        ([3, 3.5, 2, 4, 5], [1, 1, 1, 1, 1], 5),  # The loss is, at step 3.
        ([8, 7, 6, 5, 4, 3, 2, 1], [1, 2, 3, 4, 5, 6, 7, 8], 8),
    ],
)
def test_patience_waits_for_losses_and_scores(tmp_path, losses, scores, steps):
    lines = []
    assert run_with(losses, scores, tmp_path, lines).steps == steps
    assert any("got better in 2 validations" in line for line in lines) == (steps < 8)


@pytest.mark.slow
def test_sample_translations_are_reported_at_each_validation(impatient):
    lines = impatient[2]
    samples = [number for number, line in enumerate(lines) if line.startswith("  ")]
    validations = [number for number, line in enumerate(lines) if re.match(r"step \d+  ", line)]
    assert len(validations) == 6
    assert samples == [number + offset for number in validations for offset in (1, 2)]
    assert lines[samples[0]] == "  a b -> b (reference: a b)"
    assert lines[samples[1]].startswith("  c c c ") and len(lines[samples[1]]) < 120


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"seed": 2}, "seed"),
        ({"model": {**SMALL, "dropout": 0.2}}, "dropout"),
        ({"packed_width": 16}, "packed_width was 0, now 16"),
    ],
)
def test_other_settings_on_the_same_directory_are_refused_in_one_line(directory, changes, named):
    before = sorted(path.name for path in directory.rglob("*"))
    with pytest.raises(UserError, match=named) as error:
        run(directory, **changes)
    assert "\n" not in str(error.value)
    assert sorted(path.name for path in directory.rglob("*")) == before


def test_other_data_on_the_same_directory_is_refused(directory):
    with pytest.raises(UserError, match="checksum|pairs"):
        train(directory, corpus(7), corpus(2, 8), settings(max_steps=6))


@pytest.mark.parametrize("tokenize", ["ja-mecab", pytest.param("no such", marks=pytest.mark.slow)])
def test_a_tokenizer_of_bleu_that_is_missing_is_noticed_before_training(
    tmp_path, monkeypatch, tokenize
):
    monkeypatch.setitem(sys.modules, "MeCab", None)
    monkeypatch.delitem(sys.modules, "sacrebleu.tokenizers.tokenizer_ja_mecab", raising=False)
    with pytest.raises(UserError, match=f"tokenize='{tokenize}'") as error:
        run(tmp_path / "model", bleu_every=1, bleu_tokenize=tokenize)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("name", ["training.json", "tokenizer.txt"])
def test_a_truncated_file_is_named_in_one_line(directory, name):
    path = directory / name
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(UserError, match=name) as error:
        run(directory, max_steps=7)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("changes, message", [
    ({"deterministic": True}, "`deterministic` needs the TensorFlow backend. Received: .*'torch'"),
    ({"streams": 2}, "Steps in parts need the TensorFlow backend"),
    ({"micro_batches": 2}, "Steps in parts need the TensorFlow backend"),
])  # fmt: skip
def test_what_only_tensorflow_does_is_refused_elsewhere(tmp_path, monkeypatch, changes, message):
    monkeypatch.setattr(keras.backend, "backend", lambda: "torch")
    with pytest.raises(UserError, match=message):
        run(tmp_path / "model", **changes)
    assert not (tmp_path / "model").exists()


@pytest.mark.slow
def test_bleu_on_dev_chooses_the_final_weights(tmp_path):
    lines, often = [], {"evaluate_every": 1, "checkpoint_every": 1}
    result = run(tmp_path, lines, bleu_every=1, max_steps=2, **often)
    assert 0 <= result.bleu <= 100
    assert result.bleu >= max(float(row["valid_bleu"]) for row in result.history) - 1e-3
    assert (tmp_path / "checkpoints" / "best.weights.h5").is_file()
    assert any("average of the last 2" in line for line in lines)


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


@pytest.mark.slow
def test_learned_vocabulary_two_languages_and_bpe_dropout(tmp_path):
    pairs = PairsCorpus([(f"red house {n}", f"rotes Haus {n}") for n in range(200, 280)])
    result = train(
        tmp_path,
        pairs,
        None,
        settings(
            tokenizer="bpe",
            vocab_size=290,
            shared_vocabulary=False,
            bpe_dropout=0.3,
            max_steps=3,
            evaluate_every=1,
            recipe={**RECIPE, "tokens_per_batch": 1024},
        ),
    )
    assert result.epochs > 1
    assert result.bleu is None
    assert {path.name for path in tmp_path.glob("*tokenizer*")} == {
        "source_tokenizer.model",
        "target_tokenizer.model",
    }
    assert result.translator.model.config.target_vocab_size == 290


def test_other_weights_are_another_training(tmp_path):
    def mixed(weight):
        lines = [(f"red house {n}", f"Haus {n}") for n in range(60)]
        corpora = {"german": PairsCorpus(lines), "french": PairsCorpus(lines[:20])}
        return MixedCorpus(corpora, {"german": 1, "french": weight})

    options = {"tokenizer": "bpe", "vocab_size": 290, "max_steps": 1}
    train(tmp_path, mixed(3), None, settings(**options))
    with pytest.raises(UserError, match=r"weights was \[1, 3\], now \[1, 2\]"):
        train(tmp_path, mixed(2), None, settings(**options))
    with pytest.raises(UserError, match="mixture was .* now None"):
        train(tmp_path, PairsCorpus(list(mixed(3))), None, settings(**options))


@pytest.mark.slow
def test_mixed_precision_with_tokenizers_that_are_given(tmp_path):
    tokenizer = SubwordTokenizer([*WORDS, "z"])
    result = train(
        tmp_path,
        corpus(1),
        corpus(2, 8),
        settings(max_steps=1, mixed_precision=True),
        source_tokenizer=tokenizer,
    )
    model = result.translator.model
    assert model.config.vocab_size == len(WORDS) + 5
    assert {weight.dtype for weight in model.weights} == {"float32"}
    assert {layer.compute_dtype for layer in (model.encoder, model.decoder)} == {"bfloat16"}


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


@pytest.mark.slow
def test_a_truncated_best_file_does_not_stop_the_end_of_a_training(directory, caplog):
    best = directory / "checkpoints" / "best.weights.h5"
    last = sorted((directory / "checkpoints").glob("step-*"))[-1]
    best.write_bytes(last.read_bytes()[:1000])
    lines = []
    assert run(directory, lines).steps == 6
    assert "best at an evaluation are left out" in caplog.text
    assert any(line.startswith("step 6: validation loss ") for line in lines)
    assert not any("best at" in line for line in lines)


def test_a_damaged_checkpoint_does_not_stop_an_evaluation(tmp_path, caplog, monkeypatch):
    made_up(monkeypatch, [3.0, 3.0], [1.0, 1.0])
    damaged = tmp_path / "checkpoints" / "step-00000001.weights.h5"
    damage = AtStep(2, lambda _: damaged.write_bytes(damaged.read_bytes()[:1000]), before=True)
    changes = {"max_steps": 3, "checkpoint_every": 1, "evaluate_every": 2, "bleu_every": 1}
    result = run(tmp_path, callbacks=[damage], **changes)
    assert [(row["step"], row["averaged"]) for row in result.history][0] == ("2", "1")
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
    changes = {"max_steps": 5, "evaluate_every": 2, "checkpoint_every": 1}
    history = run(tmp_path, callbacks=[callback], **changes).history
    expected = ["begin", "epoch 0", 0, 1, "end of 0", "epoch 1", 0, 1, "end of 1", "epoch 2", 0]
    assert callback.events == [*expected, "end of 2", "end"]
    assert [f"{loss:.5f}" for loss in callback.losses] == [
        f"{float(row['train_loss']):.5f}" for row in history
    ]


@pytest.mark.slow
@pytest.mark.parametrize("after", [[3], [1, 3, 7]])
def test_train_loss_is_the_mean_since_the_last_evaluation_after_a_resume_too(tmp_path, after):
    changes = {"evaluate_every": 4, "checkpoint_every": 2, "max_steps": 8}
    whole = run(tmp_path / "whole", **changes)
    for step in after:
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "parts", callbacks=[AtStep(step, interrupt)], **changes)
    resumed = run(tmp_path / "parts", **changes)
    assert [row["step"] for row in resumed.history] == ["4", "8"]
    for row, expected in zip(resumed.history, whole.history, strict=True):
        assert row["train_loss"] == expected["train_loss"]


@pytest.mark.slow
def test_train_loss_of_another_interval_begins_at_the_resume(tmp_path):
    changes = {"evaluate_every": 4, "checkpoint_every": 2}
    run(tmp_path / "parts", max_steps=6, **changes)
    resumed = run(tmp_path / "parts", max_steps=7, **{**changes, "evaluate_every": 5})
    assert [row["step"] for row in resumed.history] == ["4", "6", "7"]
    whole = run(tmp_path / "whole", max_steps=7, evaluate_every=1, checkpoint_every=7)
    assert resumed.history[-1]["train_loss"] == whole.history[-1]["train_loss"]


def test_the_recipe_decides_the_search_and_few_checkpoints_are_enough_for_the_average(finished):
    _, result, lines = finished
    assert result.translator.search.length_normalization == "gnmt"
    start = "average of the last 2 checkpoints: validation loss"
    assert any(str(line).startswith(start) for line in lines)


@pytest.mark.slow
def test_another_number_of_devices_that_changes_the_batches_is_refused(directory):
    path = directory / "training.json"
    content = json.loads(path.read_text())
    assert content["fingerprint"]["row_multiple"] == 8
    content["fingerprint"]["row_multiple"] = 24
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match="row_multiple was 24, now 8"):
        run(directory)
