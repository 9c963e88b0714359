"""A MarianMTModel and our Transformer give the same logits, and hand weights to each other."""

import numpy as np
import pytest
from hypothesis import given

from keras_transformer.bridges import from_marian, to_marian
from keras_transformer.decoding import GreedySearch
from keras_transformer.models import Transformer, TransformerConfig
from tests.bridges.cases import LONG_SWEEP, SWEEP, Case, cases
from tests.bridges.comparison import (
    DTYPES,
    assert_same_weights,
    assert_small_errors,
)
from tests.bridges.marian_peer import draw_ids, make_marian, marian_call, marian_errors
from tests.closeness import assert_close
from tests.layers.oracle_parameters import array, randomize

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
PADDED = Case(masks=frozenset(["padding"]), batch=3, length=6, source_length=5)
LAYERS = {"num_encoder_layers": 1, "num_decoder_layers": 2}
SMALL = {"vocab_size": 13, **LAYERS, "d_model": 8, "intermediate_dim": 6, "num_heads": 2}


@pytest.mark.parametrize("sweep", [SWEEP, pytest.param(LONG_SWEEP, marks=pytest.mark.slow)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_logits_and_gradients_equal_marians(dtype, sweep):
    @sweep
    @given(case=cases(dtype, activations=("relu", "swish")))
    def compare(case):
        assert_small_errors(marian_errors(case), dtype)

    compare()


@pytest.mark.parametrize("dtype", DTYPES)
def test_decoding_in_steps_equals_marians(dtype):
    """Their cache of keys and values, and ours; and both are the logits of teacher forcing."""
    case = Case(**{**vars(PADDED), "dtype": dtype})
    marian = make_marian(case)
    model = from_marian(marian)
    source, _ = draw_ids(case)
    target = np.random.default_rng(2).integers(1, 13, (3, 6)).astype("int32")
    whole = marian_call(marian, source, target).detach().numpy()
    mask = torch.tensor(source != 0)
    memory = marian.model.encoder(torch.tensor(source).long(), attention_mask=mask)
    state = model.start_decoding(source, max_length=6)
    cache = None
    for step in range(6):
        tokens = target[:, step]
        theirs = marian(
            encoder_outputs=memory,
            attention_mask=mask,
            decoder_input_ids=torch.tensor(tokens).long()[:, None],
            past_key_values=cache,
            use_cache=True,
        )
        cache = theirs.past_key_values
        logits, state = model.decode_step(tokens, None, state)
        their_logits = theirs.logits[:, 0].detach().numpy()
        assert_close(array(logits), their_logits, dtype, scale=whole)
        assert_close(array(logits), whole[:, step], dtype, scale=whole)


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


@pytest.mark.parametrize("activation", ["silu", "gelu"])
def test_round_trip(activation):
    """Every weight and setting comes back, both ways."""
    rates = {"dropout": 0.1, "attention_dropout": 0.2, "activation_dropout": 0.3}
    settings = {"activation": activation, "use_bias": True, "norm_epsilon": 1e-4}
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


def test_the_papers_model_without_biases_is_exported_with_zeros():
    model = Transformer(TransformerConfig(**SMALL))
    randomize(model)
    marian = to_marian(model)
    assert not marian.model.encoder.layers[0].self_attn.q_proj.bias.any()
    source, target = draw_ids(PADDED)
    want = marian_call(marian, source, target).detach().numpy()
    logits = array(model({"source": source, "target": target})) * (target != 0)[..., None]
    assert_close(logits, want)


@pytest.mark.parametrize("settings,message", [
    ({"scale_embedding": False}, "must have scale_embedding=True.*scale_embedding=False"),
    ({"decoder_start_token_id": 0}, "another id than padding.*decoder_start_token_id=0"),
    ({"decoder_attention_heads": 4}, r"`attention_heads` must be the same.*\[2, 4\]"),
    ({"activation_function": "gelu_new"}, "one of 'relu', .*activation_function='gelu_new'"),
])  # fmt: skip
def test_what_our_model_does_not_have_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        from_marian(make_marian(Case(), **settings))


def test_the_bias_of_the_logits_is_copied_both_ways():
    marian = make_marian(Case())
    marian.final_logits_bias[0, 5] = 2.0
    model = from_marian(marian)
    assert model.config.output_bias and array(model.target_embedding.bias)[5] == 2.0
    source, target = draw_ids(PADDED)
    theirs = marian_call(marian, source, target).detach().numpy()
    logits = np.where(
        (target != 0)[..., None], array(model({"source": source, "target": target})), 0
    )
    assert_close(logits, theirs)
    assert to_marian(model).final_logits_bias.equal(marian.final_logits_bias)


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
    ({"activation": "tanh"}, "one of 'relu', 'silu', 'gelu'. Received: activation='tanh'"),
])  # fmt: skip
def test_what_marian_does_not_have_is_refused(settings, message):
    model = Transformer(TransformerConfig(**{**SMALL, **settings}))
    with pytest.raises(ValueError, match=message):
        to_marian(model)
