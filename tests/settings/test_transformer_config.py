"""The defaults of a configuration, and the settings that must fit each other."""

import pytest

from keras_transformer.models import TransformerConfig


def test_the_defaults_are_the_papers_base_model():
    assert TransformerConfig(vocab_size=37_000).to_dict() == {
        "vocab_size": 37_000,
        "target_vocab_size": None,
        "num_encoder_layers": 6,
        "num_decoder_layers": 6,
        "d_model": 512,
        "intermediate_dim": 2048,
        "num_heads": 8,
        "key_dim": None,
        "value_dim": None,
        "dropout": 0.1,
        "attention_dropout": 0.0,
        "activation_dropout": 0.0,
        "activation": "relu",
        "norm": "post",
        "position": "sinusoidal",
        "max_length": None,
        "use_bias": False,
        "norm_epsilon": 1e-6,
        "max_distance": 16,
        "sliding_window": None,
        "flash_attention": None,
        "remat": False,
    }


def test_width_of_the_logits():
    assert TransformerConfig(9).output_vocab_size == 9
    assert TransformerConfig(9, 7).output_vocab_size == 7


@pytest.mark.parametrize(
    "change, message",
    [
        (
            {"flash_attention": True, "attention_dropout": 0.1},
            "Received: attention_dropout=0.1, position='sinusoidal'",
        ),
        ({"flash_attention": True, "position": "relative"}, "position='relative'"),
        ({"position": "learned"}, "needs `max_length`. Received: max_length=None"),
        ({"d_model": 9, "num_heads": 3}, "even `d_model`. Received: d_model=9"),
        (
            {"d_model": 16, "num_heads": 3},
            "`num_heads` must divide `d_model` unless `key_dim` and `value_dim` are given. "
            "Received: num_heads=3, d_model=16",
        ),
        ({"d_model": 16, "num_heads": 3, "key_dim": 4}, "Received: num_heads=3, d_model=16"),
    ],
)
def test_settings_that_do_not_fit_are_named(change, message):
    with pytest.raises(ValueError) as error:
        TransformerConfig(**{"vocab_size": 9, **change})
    assert message in str(error.value)


def test_heads_need_not_divide_the_width_when_their_sizes_are_given():
    config = TransformerConfig(9, d_model=16, num_heads=3, key_dim=4, value_dim=5)
    assert (config.num_heads, config.key_dim, config.value_dim) == (3, 4, 5)
