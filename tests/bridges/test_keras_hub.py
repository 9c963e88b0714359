"""KerasHub's blocks and ours compute the same, and hand their weights to each other."""

import keras
import numpy as np
import pytest

from keras_transformer.bridges import from_keras_hub, to_keras_hub
from keras_transformer.layers import EncoderBlock
from tests.bridges.cases import MASKED, Case
from tests.bridges.comparison import assert_same_weights, assert_small_errors
from tests.bridges.keras_hub_peer import KINDS, keras_hub_errors
from tests.closeness import assert_close
from tests.layers.oracle_parameters import array, randomize

keras_hub = pytest.importorskip("keras_hub")
BLOCK = {"num_heads": 2, "intermediate_dim": 6}
SHAPE = (None, None, 8)


@pytest.mark.parametrize("kind, norm, activation", [
    (KINDS[0], "pre", "gelu"), (KINDS[1], "post", "silu"),
])  # fmt: skip
def test_ours_equals_keras_hubs(kind, norm, activation):
    case = Case(**MASKED, norm=norm, activation=activation)
    assert_small_errors(keras_hub_errors(kind, case), "float32")


def built(layer, *shapes):
    layer.build(*shapes)
    randomize(layer)
    return layer


PRE_NORM_GELU = {"activation": "gelu", "normalize_first": True}


@pytest.mark.parametrize("layer,shapes", [
    (keras_hub.layers.TransformerEncoder(6, 2, dropout=0.1), [SHAPE]),
    (keras_hub.layers.TransformerDecoder(6, 2, **PRE_NORM_GELU), [SHAPE, SHAPE]),
    (keras_hub.layers.TransformerDecoder(6, 2), [SHAPE, (None, None, 5)]),
    (keras_hub.layers.TransformerEncoder(6, 3), [SHAPE]),
], ids=["encoder", "decoder", "another_width", "heads_rounded_down"])  # fmt: skip
def test_round_trip(layer, shapes):
    """Every weight and setting comes back, both ways."""
    block = from_keras_hub(built(layer, *shapes))
    exported = to_keras_hub(block)
    assert_same_weights(exported, layer)
    again = from_keras_hub(exported)
    assert_same_weights(again, block)
    for one, other in ((exported, layer), (again, block)):
        config, expected = one.get_config(), other.get_config()
        del config["name"], expected["name"]
        assert config == expected
    inputs = [np.random.default_rng(0).normal(size=(2, 4, shape[-1])) for shape in shapes]
    assert_close(array(block(*inputs)), array(layer(*inputs)))


@pytest.mark.parametrize("function, make, message", [
    (from_keras_hub, lambda: keras.layers.Dense(3),
     "one of TransformerDecoder, TransformerEncoder. Receiv"),
    (to_keras_hub, lambda: EncoderBlock(**BLOCK), "Received: EncoderBlock .*not built"),
    (to_keras_hub, lambda: built(EncoderBlock(**BLOCK, key_dim=3, value_dim=5), SHAPE),
     "size width / num_heads.*key_dim=3, value_dim=5"),
])  # fmt: skip
def test_what_cannot_be_copied_is_refused(function, make, message):
    with pytest.raises(ValueError, match=message):
        function(make())
