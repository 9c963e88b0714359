"""What is said of a training before it begins: exact counts, and what fits into a memory."""

import math

import pytest

from keras_transformer.models import (
    TrainingRecipe,
    Transformer,
    TransformerConfig,
    get_preset,
)
from keras_transformer.training.estimates import (
    USABLE_MEMORY,
    count_operations,
    count_parameters,
    estimate_memory,
    measure_step,
    most_tokens,
)

TINY = {"vocab_size": 60, "d_model": 16, "intermediate_dim": 24, "num_heads": 2}
TINY |= {"num_encoder_layers": 1, "num_decoder_layers": 1}
BIG = TransformerConfig(vocab_size=37_000, **get_preset("big").config)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_encoder_layers": 3, "num_decoder_layers": 2},
        {"key_dim": 5},
        {"value_dim": 3, "use_bias": True},
        {"norm": "pre"},
        {"position": "learned", "max_length": 7},
        {"target_vocab_size": 50, "output_bias": True},
    ],
)
def test_the_count_is_that_of_the_model(changes):
    config = TransformerConfig(**{**TINY, **changes})
    assert count_parameters(config) == Transformer(config).count_params()


@pytest.mark.slow
@pytest.mark.parametrize("vocab_size", [100, 37])
def test_operations_are_those_that_torch_counts_in_its_transformer(vocab_size):
    torch = pytest.importorskip("torch", reason="needs torch")
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    rows, width, layers, d_model, heads, hidden = 3, 7, 2, 64, 4, 128
    model = torch.nn.Transformer(
        d_model, heads, layers, layers, hidden, dropout=0.0, batch_first=True
    )
    logits = torch.nn.Linear(d_model, vocab_size, bias=False)
    source, target = (torch.randn(rows, width, d_model, requires_grad=True) for _ in range(2))
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        logits(model(source, target)).sum().backward()
    config = TransformerConfig(vocab_size, None, layers, layers, d_model, hidden, heads)
    assert count_operations(config, rows * width, width) == counter.get_total_flops()


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


@pytest.mark.parametrize("how", [(), (True,), (False, 8), (True, 2, 3)])
@pytest.mark.parametrize("memory", [16e9, 80e9])
def test_most_tokens_are_the_last_that_fit(memory, how):
    tokens = most_tokens(memory, BIG, 256, *how)
    fits = [estimate_memory(BIG, n, 256, *how).total <= USABLE_MEMORY * memory
            for n in (tokens, tokens + 1)]  # fmt: skip
    assert fits == [True, False]


@pytest.mark.parametrize(
    "window, encoder, decoder",
    [
        # 4 blocks of 32 queries, each with its 32 keys and 10 before, in the encoder also after.
        (11, 4 * 32 * 52 / 100, 4 * 32 * 42 / 100),
        # 2 blocks of 50 queries.
        (51, 2 * 50 * 150 / 100, 2 * 50 * 100 / 100),
        # 1 block, with as many neighbors as the sentence has positions.
        (1000, 300, 200),
    ],
)
def test_self_attention_in_a_window_has_weights_for_the_keys_of_a_block(window, encoder, decoder):
    whole, windowed = (
        estimate_memory(TransformerConfig(**TINY, sliding_window=width), 100, 100).activations
        for width in (None, window)
    )
    bytes_of_a_key = 2 * 4  # heads, single precision
    more = math.ceil(encoder) - 100 + math.ceil(decoder) - 100
    assert windowed - whole == 100 * bytes_of_a_key * more


def test_what_is_not_kept_is_not_counted():
    kept, recomputed, by_blocks = (
        estimate_memory(TransformerConfig(**TINY, **changes), 100, 50).activations
        for changes in ({}, {"remat": True}, {"flash_attention": True})
    )
    # A decoder block: two attentions to 50 keys, the hidden layer, and three residuals.
    block = 2 * (4 * 6 * 16 + 4 * 2 * 50) + 4 * 24 + 3 * (8 + 2 * 4) * 16
    assert recomputed == 100 * (2 * 4 * 16 + block)  # the inputs of both blocks, and one block
    assert kept - by_blocks == 100 * 3 * 4 * 2 * 50  # three attentions


@pytest.mark.slow
def test_a_measured_step_has_the_tokens_it_says():
    told = []
    seconds, tokens = measure_step(
        TransformerConfig(**TINY), TrainingRecipe(max_length=20), 100, False, False,
        progress=lambda *values: told.append(values),
    )  # fmt: skip
    assert tokens == 100
    assert told == [(n, 4) for n in range(1, 5)]
    assert 0 < seconds < 60
