"""What is said of a training before it begins: exact counts, and what fits into a memory."""

import math

import pytest

from keras_transformer.models import TrainingRecipe, TransformerConfig, get_preset
from keras_transformer.training import estimates
from keras_transformer.training.estimates import (
    USABLE_MEMORY,
    count_operations,
    estimate_memory,
    most_tokens,
)

TINY = {"vocab_size": 60, "d_model": 16, "intermediate_dim": 24, "num_heads": 2}
TINY |= {"num_encoder_layers": 1, "num_decoder_layers": 1}
BIG = TransformerConfig(vocab_size=37_000, **get_preset("big").config)


def test_operations_of_the_papers_models():
    """By hand: 6 operations a weight and token, 2.5e9 and 7.5e9 tokens; Table 2 has 3.3e18, 2.3e19.

    The paper multiplies hours, GPUs and 9.5e12 operations a second that the GPU could do.
    """
    for preset, weights, keys, tokens in (
        ("base", 18_874_368 + 25_165_824 + 18_944_000, 18 * 1024, 2.5e9),
        ("big", 75_497_472 + 100_663_296 + 37_888_000, 18 * 2048, 7.5e9),
    ):
        config = TransformerConfig(37_000, **get_preset(preset).config)
        expected = 6 * tokens * (weights + 32 * keys)
        assert count_operations(config, int(tokens), 32) == expected
        paper = {"base": 12 * 3600 * 8 * 9.5e12, "big": 3.5 * 86_400 * 8 * 9.5e12}[preset]
        assert 0.25 < expected / paper < 0.5


def test_memory_without_a_batch_is_sixteen_bytes_a_parameter():
    """Weights, gradients and two moments in single precision."""
    assert estimate_memory(BIG, 100, 32).fixed == 16 * 214_171_648
    # And a copy in half precision, the exchange, the sum over micro-batches.
    assert estimate_memory(BIG, 100, 32, True, 2, 4).fixed == (16 + 2 + 4 + 4) * 214_171_648
    # And the moving average of the weights.
    assert estimate_memory(BIG, 100, 32, averages=True).fixed == (16 + 4) * 214_171_648


def test_two_passes_take_the_room_of_twice_the_tokens():
    """R-Drop computes each sentence twice; weights, gradients and moments are there once."""
    assert estimate_memory(BIG, 100, 32, passes=2) == estimate_memory(BIG, 200, 32)


@pytest.mark.parametrize("memory, passes", [(16e9, 1), (80e9, 1), (80e9, 2)])
def test_most_tokens_are_the_last_that_fit(memory, passes):
    how = {"mixed_precision": True, "num_devices": 2, "micro_batches": 3, "passes": passes}
    tokens = most_tokens(memory, BIG, 256, **how)
    fits = [estimate_memory(BIG, n, 256, **how).total <= USABLE_MEMORY * memory
            for n in (tokens, tokens + 1)]  # fmt: skip
    assert fits == [True, False]


def test_self_attention_in_a_window_has_weights_for_the_keys_of_a_block():
    whole, windowed = (
        estimate_memory(TransformerConfig(**TINY, sliding_window=width), 100, 100).activations
        for width in (None, 11)
    )
    bytes_of_a_key = 2 * 4  # heads, single precision
    # 4 blocks of 32 queries, each with its 32 keys and 10 before, in the encoder also after.
    more = math.ceil(4 * 32 * 52 / 100) - 100 + math.ceil(4 * 32 * 42 / 100) - 100
    assert windowed - whole == 100 * bytes_of_a_key * more


@pytest.mark.parametrize("name", ["ResourceExhaustedError", "OutOfMemoryError"])
def test_a_step_that_fills_the_memory_is_measured_with_half_of_the_tokens(name, monkeypatch):
    tried = []

    def measure(model, rows, width, progress):
        tried.append((model, rows * width))
        if len(tried) < 3:
            raise type(name, (Exception,), {})
        return 0.5, rows * width

    monkeypatch.setattr(estimates, "_measure", measure)
    arguments = TransformerConfig(**TINY), TrainingRecipe(), 256, False, False, lambda *_: None
    assert estimates.measure_step(*arguments) == (0.5, 64)
    assert [tokens for _, tokens in tried] == [256, 128, 64]
    assert len({id(model) for model, _ in tried}) == 3  # On JAX the old weights are lost.
