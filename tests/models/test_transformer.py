"""The model: the oracle's logits, decoding in steps, precision, saving, training."""

import functools

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.models import Transformer, TransformerConfig
from tests.closeness import assert_close
from tests.layers.harness import WIDEST
from tests.layers.oracle_parameters import array, randomize, transformer_parameters
from tests.oracle import transformer as oracle

SOURCE = np.array([[5, 9, 3, 0, 0], [7, 8, 11, 6, 3]], "int32")
TARGET = np.array([[2, 4, 6, 10], [2, 9, 0, 0]], "int32")
IDS = {"source": SOURCE, "target": TARGET}
LAYERS = {"num_encoder_layers": 1, "num_decoder_layers": 1}
SMALL = {"vocab_size": 12, **LAYERS, "d_model": 8, "intermediate_dim": 12, "num_heads": 2}


def small(dtype=None, **overrides):
    return Transformer(TransformerConfig(**{**SMALL, **overrides}), dtype=dtype)


# For tests that change nothing in the model; building it is what takes the time.
shared = functools.cache(small)


VARIANTS = {
    "paper": {"num_encoder_layers": 2, "num_decoder_layers": 2},
    "pre_norm": {"norm": "pre"},
    "learned": {"position": "learned", "max_length": 6},
    "mbart": {"position": "learned", "max_length": 6, "norm": "pre", "embedding_norm": True},
    "heads_of_their_own": {"num_heads": 3, "key_dim": 2, "value_dim": 5},
    "two_vocabularies_with_biases": {
        "target_vocab_size": 15,
        "num_encoder_layers": 2,
        "use_bias": True,
        "output_bias": True,
    },
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_equal_the_oracles(variant):
    model = shared(WIDEST, **VARIANTS[variant])
    randomize(model)
    logits = array(model(IDS))
    assert logits.shape == (2, 4, model.config.output_vocab_size)
    params = transformer_parameters(model)
    for row in range(2):
        want = oracle.transformer(
            params, model.config.num_heads, SOURCE[row], TARGET[row], model.config.norm
        )
        assert_close(logits[row], want, dtype=WIDEST)


def test_a_model_for_weights_from_a_file_has_none_of_its_own():
    model, drawn = (Transformer(shared().config, initialize=flag) for flag in (False, True))
    for empty, weight in zip(model.weights, drawn.weights, strict=True):
        assert empty.path == weight.path
        if len(weight.shape) > 1:
            assert not array(empty).any() and array(weight).any()
    assert model.get_config() == drawn.get_config()


def test_one_matrix_is_shared_three_ways():
    model = small()
    assert model.source_embedding is model.target_embedding
    tables = [weight for weight in model.weights if weight.path.endswith("embeddings")]
    assert len(tables) == 1
    two = small(target_vocab_size=15)
    shapes = [tuple(w.shape) for w in two.weights if w.path.endswith("embeddings")]
    assert sorted(shapes) == [(12, 8), (15, 8)]


@pytest.mark.parametrize(
    "variant, width, dtype",
    [
        *((variant, 2, WIDEST) for variant in VARIANTS),
        ("paper", 1, WIDEST),
        ("pre_norm", 2, "mixed_float16"),
    ],
)
def test_steps_equal_the_whole(variant, width, dtype):
    """Cached decoding == the uncached call, for beams that share the encoder's keys."""
    model = shared(dtype, **VARIANTS[variant])
    rng = np.random.default_rng(1)
    targets = rng.integers(2, 12, (2 * width, 5)).astype("int32")
    want = array(model({"source": np.repeat(SOURCE, width, axis=0), "target": targets}))
    state = model.start_decoding(SOURCE, width=width, max_length=5)
    for step in range(5):
        logits, state = model.decode_step(targets[:, step], None, state)
        assert logits.shape == (2 * width, model.config.output_vocab_size)
        assert_close(array(logits), want[:, step], dtype, scale=want)


@pytest.mark.parametrize("variant", [{}, {"position": "rotary"}])
def test_no_sentences_are_decoded_without_an_error(variant):
    model, tokens = shared(**variant), np.zeros((0,), "int32")
    state = model.start_decoding(np.zeros((0, 4), "int32"), 3, max_length=5)
    logits, state = model.decode_step(tokens, None, state)
    logits, state = model.decode_step(tokens, tokens, state)
    state = model.keep_sentences(state, ops.convert_to_tensor(tokens))
    logits, state = model.decode_step(tokens, tokens, state)
    assert tuple(logits.shape) == (0, 12)


@pytest.mark.tensorflow_only("caches grow in a graph there alone")
def test_a_cache_grows_in_a_loop_also_where_every_other_size_is_known():
    """It begins with a length of 0, which a graph must not take for constant."""
    import tensorflow as tf

    model = shared()

    def step(i, tokens, state):
        logits, state = model.decode_step(tokens, None, state)
        return i + 1, ops.cast(ops.argmax(logits, axis=-1), "int32"), state

    def last_tokens(source):
        first = (ops.zeros((), "int32"), ops.full((2,), 2, dtype="int32"))
        state = model.start_decoding(source, 1, 4)
        return ops.while_loop(lambda i, *_: i < 4, step, (*first, state))[1]

    tokens = ops.full((2,), 2, dtype="int32")
    state = model.start_decoding(SOURCE, 1, 4)
    for _ in range(4):
        _, tokens, state = step(0, tokens, state)
    compiled = tf.function(last_tokens, input_signature=[tf.TensorSpec((2, 5), "int32")])
    np.testing.assert_array_equal(compiled(SOURCE), tokens)


@pytest.mark.skipif(keras.backend.backend() == "tensorflow", reason="TensorFlow has such steps")
def test_steps_in_parts_are_refused_on_other_backends():
    model = small()
    model.micro_batches = 2
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with pytest.raises(ValueError, match="need the TensorFlow backend. Received: micro_batches=2"):
        model.train_on_batch(IDS, np.roll(TARGET, -1, axis=1))


@pytest.mark.parametrize("value, message", [
    (np.ones((2, 5), "float32"), "`source` must have an integer dtype.*Received: .*float32"),
    (np.ones((2, 5, 8), "int32"), r"`source` must have the shape \[batch, length\]. Received: "),
])  # fmt: skip
def test_inputs_that_are_no_ids_are_refused(value, message):
    for call in (shared(), small().predict):
        with pytest.raises(ValueError, match=message):
            call({"source": value, "target": np.ones((2, 5), "int32")})


@pytest.mark.parametrize("name, message", [
    ("domain", r"of this model are .*target.\], without others. Received: \[.domain., "),
    ("source_segments", r"packed rows are for LossModel\(packed=True\)"),
])  # fmt: skip
def test_inputs_that_the_model_lacks_are_refused(name, message):
    """Keras would take the first two in the order of all names."""
    model = small()
    with pytest.raises(ValueError, match=message):
        model({**IDS, name: SOURCE})
    with pytest.raises(ValueError, match=message):
        model.predict({**IDS, name: SOURCE}, verbose=0)


def test_no_logits_depend_on_later_target_tokens():
    model = shared(WIDEST)
    changed = TARGET.copy()
    changed[:, 2:] = 11
    one, other = array(model(IDS)), array(model({**IDS, "target": changed}))
    assert_close(one[:, :2], other[:, :2], dtype=WIDEST)
    assert np.abs(one[0, 2:] - other[0, 2:]).max() > 1e-3
