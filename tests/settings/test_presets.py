"""Presets are the rows of the paper's Table 3, with its exact numbers of parameters."""

import pytest

from keras_transformer.models import TrainingRecipe, TransformerConfig, get_preset
from keras_transformer.settings.transformer_config import count_parameters

# Name: what Table 3 changes in base, and the parameters with 37,000 shared tokens.
BASE = 63_045_632
BIG = {"d_model": 1024, "intermediate_dim": 4096, "num_heads": 16}
TABLE = {
    "base": ({}, BASE),
    "table3_a_h1": ({"num_heads": 1}, BASE),
    "table3_a_h4": ({"num_heads": 4}, BASE),
    "table3_a_h16": ({"num_heads": 16}, BASE),
    "table3_a_h32": ({"num_heads": 32}, BASE),
    "table3_b_dk16": ({"key_dim": 16}, 55_967_744),
    "table3_b_dk32": ({"key_dim": 32}, 58_327_040),
    "table3_c_n2": ({"num_encoder_layers": 2, "num_decoder_layers": 2}, 33_644_544),
    "table3_c_n4": ({"num_encoder_layers": 4, "num_decoder_layers": 4}, 48_345_088),
    "table3_c_n8": ({"num_encoder_layers": 8, "num_decoder_layers": 8}, 77_746_176),
    "table3_c_d256": ({"d_model": 256}, 26_816_512),
    "table3_c_d1024": ({"d_model": 1024}, 163_815_424),
    "table3_c_ff1024": ({"intermediate_dim": 1024}, 50_450_432),
    "table3_c_ff4096": ({"intermediate_dim": 4096}, 88_236_032),
    "table3_d_dropout00": ({"dropout": 0.0}, BASE),
    "table3_d_dropout02": ({"dropout": 0.2}, BASE),
    "table3_d_smoothing00": ({}, BASE),
    "table3_d_smoothing02": ({}, BASE),
    "table3_e": ({"position": "learned", "max_length": 256}, 63_307_776),
    "big": ({**BIG, "dropout": 0.3}, 214_171_648),
    "big_en_fr": ({**BIG, "dropout": 0.1}, 214_171_648),
}


@pytest.mark.parametrize("name", TABLE)
def test_configurations_and_parameters_are_those_of_table_3(name):
    """Counted from the configuration, which is as exact: see test_estimates.py."""
    changes, num_parameters = TABLE[name]
    config = TransformerConfig(vocab_size=37_000, **get_preset(name).config)
    assert config == TransformerConfig(vocab_size=37_000, **changes)
    assert count_parameters(config) == num_parameters


def test_the_published_size_of_tiny():
    """Wu et al. (2021) report 2.57M with 10,000 merges, which give some 9,800 tokens."""
    count = count_parameters(TransformerConfig(9_776, **get_preset("tiny").config))
    two_final_norms = 2 * 2 * 128
    assert count == 4 * (131_968 + 197_760) + 9_776 * 128 + two_final_norms
    assert abs(count - 2.57e6) < 0.01e6


def test_recipes_are_the_papers():
    assert get_preset("base").recipe == TrainingRecipe()
    for name in ("big", "big_en_fr"):
        recipe = get_preset(name).recipe
        assert recipe.max_steps == 300_000 and recipe.average_checkpoints == 20
    smoothing = {"table3_d_smoothing00": 0.0, "table3_d_smoothing02": 0.2}
    for name in TABLE:
        if name.startswith("table3"):  # section 6.2: without averages of checkpoints
            smoothed = {"label_smoothing": smoothing.get(name, 0.1), "average_checkpoints": 1}
            assert get_preset(name).recipe == TrainingRecipe(**smoothed)


@pytest.mark.parametrize(
    "name, vocab_size, dropout, warmup_steps",
    [("parsing", 16_000, 0.2, 16_000), ("parsing_semi_supervised", 32_000, 0.1, 4000)],
)
def test_parsers_are_those_of_section_6_3(name, vocab_size, dropout, warmup_steps):
    """4 layers, d_model 1024, the rest as base; beam 21, alpha 0.3. Counted by hand: an attention
    has 4 matrices, a feed-forward network 2 and their biases, a norm 2 vectors."""
    preset = get_preset(name)
    attention, norm = 4 * 1024**2, 2 * 1024
    feed_forward = 2 * 1024 * 2048 + 2048 + 1024
    encoder, decoder = attention + feed_forward + 2 * norm, 2 * attention + feed_forward + 3 * norm
    config = TransformerConfig(vocab_size, target_vocab_size=60, **preset.config)
    assert count_parameters(config) == 4 * (encoder + decoder) + (vocab_size + 60) * 1024
    assert (config.dropout, config.attention_dropout, config.num_heads) == (dropout, dropout, 8)
    recipe = preset.recipe
    assert (recipe.beam_size, recipe.length_penalty) == (21, 0.3)
    assert (recipe.warmup_steps, recipe.max_length) == (warmup_steps, 512)
    assert recipe.label_smoothing == 0.1
    # Half of what the formula of section 5.3 gives at the end of the warm-up.
    assert recipe.peak_learning_rate == pytest.approx(0.5 * 1024**-0.5 * warmup_steps**-0.5)


def test_the_recipe_has_the_numbers_of_sections_5_and_6_1():
    recipe = TrainingRecipe()
    assert (recipe.beta_1, recipe.beta_2, recipe.epsilon) == (0.9, 0.98, 1e-9)
    assert recipe.warmup_steps == 4000 and recipe.peak_learning_rate is None
    assert recipe.label_smoothing == 0.1 and recipe.tokens_per_batch == 25_000
    assert recipe.max_steps == 100_000 and recipe.average_checkpoints == 5
    assert recipe.beam_size == 4 and recipe.length_penalty == 0.6
    assert recipe.length_normalization == "gnmt"
