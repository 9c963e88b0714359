"""A MarianMTModel and our Transformer give the same logits, and hand weights to each other."""

import numpy as np
import pytest

from keras_transformer.bridges import from_marian, to_marian
from keras_transformer.decoding import GreedySearch
from keras_transformer.models import Transformer, TransformerConfig
from tests.bridges.cases import MASKED, Case
from tests.bridges.comparison import (
    DTYPES,
    assert_same_weights,
    assert_small_errors,
)
from tests.bridges.marian_peer import draw_ids, make_marian, marian_errors
from tests.layers.oracle_parameters import array, randomize

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
PADDED = Case(masks=frozenset(["padding"]), batch=3, length=6, source_length=5)
LAYERS = {"num_encoder_layers": 1, "num_decoder_layers": 2}
SMALL = {"vocab_size": 13, **LAYERS, "d_model": 8, "intermediate_dim": 6, "num_heads": 2}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ["relu", "swish"])
def test_logits_and_gradients_equal_marians(activation, dtype):
    case = Case(**MASKED, num_layers=1, activation=activation, dtype=dtype)
    assert_small_errors(marian_errors(case), dtype)


def test_an_exported_model_generates_what_greedy_search_finds():
    model = Transformer(TransformerConfig(**SMALL))
    randomize(model)
    source, _ = draw_ids(PADDED)
    tokens = to_marian(model).generate(
        torch.tensor(source).long(),
        attention_mask=torch.tensor(source != 0),
        do_sample=False,
        num_beams=1,
        max_new_tokens=6,
    )
    state = model.start_decoding(source, max_length=6)
    found = array(GreedySearch()(model.decode_step, state, [6] * 3, 6).tokens)[:, 0]
    assert (tokens[:, 0] == 2).all()
    np.testing.assert_array_equal(tokens[:, 1:].numpy(), found[:, : tokens.shape[1] - 1])
    assert not found[:, tokens.shape[1] - 1 :].any()


def test_round_trip():
    """Every weight and setting comes back, both ways."""
    rates = {"dropout": 0.1, "attention_dropout": 0.2, "activation_dropout": 0.3}
    settings = {"activation": "silu", "use_bias": True, "output_bias": True, "norm_epsilon": 1e-4}
    config = TransformerConfig(**SMALL, **rates, **settings)
    model = Transformer(config)
    randomize(model)
    marian = to_marian(model, max_length=32)
    assert not marian.training
    again = from_marian(marian)
    assert again.config == config
    assert_same_weights(again, model)
    state, expected = to_marian(again, max_length=32).state_dict(), marian.state_dict()
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[name], expected[name]) for name in expected)


@pytest.mark.parametrize("settings,message", [
    ({"scale_embedding": False}, "must have scale_embedding=True.*scale_embedding=False"),
    ({"decoder_start_token_id": 0}, "another id than padding.*decoder_start_token_id=0"),
    ({"activation_function": "gelu_new"}, "one of 'relu', .*activation_function='gelu_new'"),
])  # fmt: skip
def test_what_our_model_does_not_have_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        from_marian(make_marian(Case(), **settings))


def test_other_positions_and_other_models_are_refused():
    marian = make_marian(Case())
    marian.model.decoder.embed_positions.weight[1] = 0.0
    with pytest.raises(ValueError, match="sinusoids. Received: embed_positions"):
        from_marian(marian)
    marian = make_marian(Case())
    marian.lm_head.weight = torch.nn.Parameter(2 * marian.lm_head.weight.detach())
    with pytest.raises(ValueError, match="matrix of `model.shared`. Received: another matrix"):
        from_marian(marian)
    with pytest.raises(ValueError, match="one of MarianMTModel. Received: .*type MarianModel"):
        from_marian(marian.model)


@pytest.mark.parametrize("settings,message", [
    ({"norm": "pre"}, "norm='post'. Received: norm='pre'"),
    ({"position": "learned", "max_length": 9}, "Received: position='learned'"),
    ({"key_dim": 3}, "key_dim=None or 4.0. Received: key_dim=3"),
    ({"embedding_norm": True}, "Received: embedding_norm=True"),
])  # fmt: skip
def test_what_marian_does_not_have_is_refused(settings, message):
    model = Transformer(TransformerConfig(**{**SMALL, **settings}))
    with pytest.raises(ValueError, match=message):
        to_marian(model)
