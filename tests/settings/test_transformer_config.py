"""A configuration checks itself, cannot be changed, and survives a file."""

import dataclasses
import json

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


def test_json_round_trip():
    config = TransformerConfig(
        100, 120, 1, 2, 32, 64, 3, 5, 7, 0.2, 0.3, 0.4, "gelu", "pre", "learned", 50, True, 1e-5
    )
    values = json.loads(json.dumps(config.to_dict()))
    assert TransformerConfig.from_dict(values) == config
    assert TransformerConfig.from_dict({"vocab_size": 9}) == TransformerConfig(9)


def test_it_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        TransformerConfig(9).d_model = 4


def test_width_of_the_logits():
    assert TransformerConfig(9).output_vocab_size == 9
    assert TransformerConfig(9, 7).output_vocab_size == 7


@pytest.mark.parametrize(
    "change,message",
    [
        ({"vocab_size": 0}, "Received: vocab_size=0"),
        ({"vocab_size": None}, "Received: vocab_size=None"),
        ({"vocab_size": "9"}, "Received: vocab_size='9'"),
        ({"target_vocab_size": -1}, "Received: target_vocab_size=-1"),
        ({"num_encoder_layers": 0}, "Received: num_encoder_layers=0"),
        ({"num_decoder_layers": 1.0}, "Received: num_decoder_layers=1.0"),
        ({"d_model": True}, "Received: d_model=True"),
        ({"intermediate_dim": 0}, "Received: intermediate_dim=0"),
        ({"num_heads": 0}, "Received: num_heads=0"),
        ({"key_dim": 0}, "Received: key_dim=0"),
        ({"value_dim": 0}, "Received: value_dim=0"),
        ({"dropout": 1.0}, "Received: dropout=1.0"),
        ({"dropout": float("nan")}, "Received: dropout=nan"),
        ({"dropout": "0.1"}, "Received: dropout='0.1'"),
        ({"attention_dropout": -0.1}, "Received: attention_dropout=-0.1"),
        ({"activation_dropout": None}, "Received: activation_dropout=None"),
        ({"activation": None}, "Received: activation=None"),
        ({"use_bias": 1}, "True or False. Received: use_bias=1"),
        ({"norm_epsilon": 0}, "above 0. Received: norm_epsilon=0"),
        ({"norm": "Pre"}, "one of 'post', 'pre'. Received: norm='Pre'"),
        ({"position": None}, "'relative', 'rotary'. Received: position=None"),
        ({"max_distance": 0}, "Received: max_distance=0"),
        ({"sliding_window": 0}, "Received: sliding_window=0"),
        ({"flash_attention": 1}, "Received: flash_attention=1"),
        (
            {"flash_attention": True, "attention_dropout": 0.1},
            "Received: attention_dropout=0.1, position='sinusoidal'",
        ),
        ({"flash_attention": True, "position": "relative"}, "position='relative'"),
        ({"position": "learned"}, "needs `max_length`. Received: max_length=None"),
        ({"position": "learned", "max_length": 0}, "Received: max_length=0"),
        ({"d_model": 9, "num_heads": 3}, "even `d_model`. Received: d_model=9"),
        (
            {"d_model": 16, "num_heads": 3},
            "`num_heads` must divide `d_model` unless `key_dim` and `value_dim` are given. "
            "Received: num_heads=3, d_model=16",
        ),
        ({"d_model": 16, "num_heads": 3, "key_dim": 4}, "Received: num_heads=3, d_model=16"),
    ],
)
def test_what_is_wrong_is_named(change, message):
    with pytest.raises(ValueError) as error:
        TransformerConfig(**{"vocab_size": 9, **change})
    assert message in str(error.value)


def test_heads_need_not_divide_the_width_when_their_sizes_are_given():
    config = TransformerConfig(9, d_model=16, num_heads=3, key_dim=4, value_dim=5)
    assert (config.num_heads, config.key_dim, config.value_dim) == (3, 4, 5)


def test_unknown_settings_are_named():
    with pytest.raises(ValueError, match="no such setting.*d_model.*Received: heads, width"):
        TransformerConfig.from_dict({"vocab_size": 9, "width": 3, "heads": 2})
