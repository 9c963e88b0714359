"""train: a model directory that translates, resumed after an interruption, refused when changed."""

import json
import random
import shutil

import keras
import numpy as np
import pytest

from keras_transformer.data import PairsCorpus, SubwordTokenizer
from keras_transformer.errors import UserError
from keras_transformer.training import TrainingSettings, train

pytest.importorskip("tensorflow")

WORDS = [chr(code) for code in range(ord("a"), ord("f"))]
SMALL = {
    "num_encoder_layers": 1,
    "num_decoder_layers": 1,
    "d_model": 16,
    "intermediate_dim": 32,
    "num_heads": 2,
    "dropout": 0.1,
}
RECIPE = {
    "tokens_per_batch": 128,
    "warmup_steps": 20,
    "peak_learning_rate": 1e-2,
    "average_checkpoints": 2,
    "beam_size": 2,
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
    return TrainingSettings(**{**values, **changes})


def run(directory, lines=None, **changes):
    report = (lambda line: None) if lines is None else lines.append
    return train(directory, corpus(1), corpus(2, 8), settings(**changes), report=report)


class Interrupt(keras.callbacks.Callback):
    """Stops the process's work in the middle, as Ctrl-C does."""

    def __init__(self, after):
        super().__init__()
        self.after = after

    def on_train_batch_end(self, batch, logs=None):
        self.after -= 1
        if not self.after:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A directory after six steps, the result and the reported lines."""
    directory, lines = tmp_path_factory.mktemp("finished") / "model", []
    return directory, run(directory, lines), lines


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
    assert all(float(row["valid_loss"]) > 0 for row in result.history)
    assert json.loads((directory / "recipe.json").read_text())["warmup_steps"] == 20
    assert any(line.startswith("step 6") for line in lines)


def test_interrupted_and_resumed_equals_uninterrupted(tmp_path):
    expected = run(tmp_path / "whole", max_steps=7)
    with pytest.raises(KeyboardInterrupt):
        train(
            tmp_path / "parts",
            corpus(1),
            corpus(2, 8),
            settings(max_steps=7),
            callbacks=[Interrupt(after=5)],
        )
    lines = []
    resumed = run(tmp_path / "parts", lines, max_steps=7)
    assert lines[1].startswith("Resuming after step 3")
    assert resumed.steps == 7
    assert [row["step"] for row in resumed.history] == ["3", "6", "7"]
    for name in ("valid_loss", "learning_rate"):
        assert [row[name] for row in resumed.history] == [row[name] for row in expected.history]
    for one, other in zip(
        expected.translator.model.get_weights(), resumed.translator.model.get_weights(), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_a_finished_training_goes_on_with_more_steps(directory):
    lines = []
    assert run(directory, lines).steps == 6
    assert any("Nothing is left" in line for line in lines)
    assert run(directory, max_steps=7).steps == 7


@pytest.mark.parametrize(
    ("changes", "named"),
    [({"seed": 2}, "seed"), ({"model": {**SMALL, "dropout": 0.2}}, "dropout")],
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


@pytest.mark.parametrize("name", ["training.json", "tokenizer.txt"])
def test_a_truncated_file_is_named_in_one_line(directory, name):
    path = directory / name
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(UserError, match=name) as error:
        run(directory, max_steps=7)
    assert "\n" not in str(error.value)


def test_output_that_is_no_training_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="must be a directory"):
        run(tmp_path / "file")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError, match="cannot be trained"):
        run(tmp_path)


def test_bleu_on_dev_chooses_the_final_weights(tmp_path):
    lines = []
    result = run(tmp_path, lines, bleu_every=1, max_steps=9)
    assert 0 <= result.bleu <= 100
    assert result.bleu >= max(float(row["valid_bleu"]) for row in result.history) - 1e-3
    assert (tmp_path / "checkpoints" / "best.weights.h5").is_file()
    assert any("average of the last 2" in line for line in lines)


def test_learns_to_copy(tmp_path):
    result = train(
        tmp_path,
        corpus(1, 400),
        corpus(2, 20),
        settings(
            max_steps=200,
            evaluate_every=100,
            checkpoint_every=100,
            model={**SMALL, "d_model": 32, "dropout": 0.0},
            recipe={**RECIPE, "tokens_per_batch": 512},
        ),
    )
    losses = [float(row["valid_loss"]) for row in result.history]
    assert losses[-1] < 0.3


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
            max_steps=10,
            recipe={**RECIPE, "tokens_per_batch": 512},
        ),
    )
    assert result.epochs > 1
    assert result.bleu is None
    assert {path.name for path in tmp_path.glob("*tokenizer*")} == {
        "source_tokenizer.model",
        "target_tokenizer.model",
    }
    assert result.translator.model.config.target_vocab_size == 290


def test_time_limit_ends_the_training_with_a_usable_model(tmp_path):
    result = run(tmp_path, max_minutes=1e-6, max_steps=50)
    assert result.steps == 1
    assert (tmp_path / "model.weights.h5").is_file()


def test_a_loss_that_is_no_number_ends_with_a_clear_message(tmp_path):
    with pytest.raises(UserError, match="diverged"):
        run(tmp_path, recipe={**RECIPE, "peak_learning_rate": 1e30}, max_steps=60)


def test_mixed_precision_with_tokenizers_that_are_given(tmp_path):
    tokenizer = SubwordTokenizer([*WORDS, "z"])
    result = train(
        tmp_path,
        corpus(1),
        corpus(2, 8),
        settings(max_steps=3, mixed_precision=True),
        source_tokenizer=tokenizer,
    )
    model = result.translator.model
    assert model.config.vocab_size == len(WORDS) + 5
    assert {weight.dtype for weight in model.weights} == {"float32"}
    assert {layer.compute_dtype for layer in (model.encoder, model.decoder)} == {"bfloat16"}
