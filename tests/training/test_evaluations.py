"""The columns of a history, and what a run has reached, as states of before say it too."""

import dataclasses

from keras_transformer.training.checkpoints import Progress
from keras_transformer.training.evaluations import history_columns


def test_the_columns_name_the_score():
    assert "valid_bleu" in history_columns("bleu") and "valid_f1" not in history_columns("bleu")
    assert set(history_columns("f1")) ^ set(history_columns("bleu")) == {"valid_f1", "valid_bleu"}


def test_a_state_that_says_bleu_is_read():
    progress = Progress(step=4, best_score=31.5, best_step=3)
    state = dataclasses.asdict(progress)
    assert Progress.from_dict(state) == progress
    old = {name.replace("_score", "_bleu"): value for name, value in state.items()}
    old["last_bleu"] = 30.0
    assert "best_bleu" in old and Progress.from_dict(old) == progress
