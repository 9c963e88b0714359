"""The optimizer of a recipe."""

from keras_transformer.models import TrainingRecipe
from keras_transformer.training import GlobalClipAdam, Muon, make_optimizer
from tests.closeness import assert_close


def test_make_optimizer_has_the_numbers_of_the_recipe():
    optimizer = make_optimizer(TrainingRecipe(), d_model=512)
    assert (optimizer.beta_1, optimizer.beta_2, optimizer.epsilon) == (0.9, 0.98, 1e-9)
    schedule = optimizer.get_config()["learning_rate"]["config"]
    assert schedule == {"d_model": 512, "warmup_steps": 4000, "scale": 1.0}


def test_make_optimizer_peak_and_clipping():
    recipe = TrainingRecipe(peak_learning_rate=5e-3, warmup_steps=2000, clip_norm=1.0)
    optimizer = make_optimizer(recipe, d_model=128)
    assert isinstance(optimizer, GlobalClipAdam)
    assert optimizer.clip_norm == 1.0
    optimizer.iterations.assign(1999)
    assert_close(float(optimizer.learning_rate), 5e-3)


def test_the_recipe_chooses_muon():
    recipe = TrainingRecipe(optimizer="muon", clip_norm=1.0, ema_momentum=0.9)
    optimizer = make_optimizer(recipe, d_model=128)
    assert isinstance(optimizer, Muon)
    assert (optimizer.clip_norm, optimizer.beta_2, optimizer.use_ema) == (1.0, 0.98, True)
