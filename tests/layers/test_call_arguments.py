"""Arguments that do not fit together are refused, by values and by shapes alone."""

import keras
import numpy as np
import pytest

from keras_transformer.layers import (
    Decoder,
    DecoderBlock,
    Encoder,
    EncoderBlock,
    LearnedPositionEmbedding,
    MultiHeadAttention,
    SinusoidalPositionEncoding,
    TiedEmbedding,
)

STATES, SOURCE = (2, 5, 8), (2, 7, 8)
LAYERS = {
    "encoder": lambda: Encoder([EncoderBlock(2, 12)]),
    "encoder block": lambda: EncoderBlock(2, 12),
    "decoder": lambda: Decoder([DecoderBlock(2, 12)]),
    "decoder block": lambda: DecoderBlock(2, 12),
}
CASES = [
    *((name, STATES, *case) for name in LAYERS for case in (
        ({"padding_mask": (2, 4)}, "`padding_mask` .* 2, 5"),
        ({"padding_mask": (2, 1)}, "`padding_mask`"),
        ({"padding_mask": (3, 5)}, "`padding_mask`"),
        ({"padding_mask": (2, 1, 5)}, "`padding_mask`"),
        ({"attention_mask": (2, 5, 6)}, "`attention_mask`"),
        ({"attention_mask": (2, 5)}, "`attention_mask`"),
    )),
    *((name, STATES, *case) for name in ("decoder", "decoder block") for case in (
        ({"encoder_outputs": (3, 7, 8)}, "`encoder_outputs` .* 2"),
        ({"encoder_outputs": (2, 7)}, "`encoder_outputs`"),
        ({"encoder_outputs": SOURCE, "encoder_padding_mask": (2, 5)}, "`encoder_padding_mask`"),
        ({"encoder_outputs": SOURCE, "encoder_attention_mask": (2, 5, 5)},
         "`encoder_attention_mask`"),
    )),
    *((name, (2, 5), {}, "`inputs`") for name in LAYERS),
    ("embedding", STATES, {}, r"`inputs` must have the shape \[batch, length\]"),
    ("logits", (2, 5), {}, r"`inputs` must have the shape \[..., 8\]"),
    ("attention", STATES, {"value": (3, 7, 8)}, "`value`"),
    ("attention", STATES, {"value": SOURCE, "key": (2, 5, 8)}, "`key`"),
    ("attention", STATES, {"value": SOURCE, "attention_mask": (2, 5, 5)}, "`attention_mask`"),
]  # fmt: skip


@pytest.mark.parametrize("is_symbolic", [False, True])
@pytest.mark.parametrize("name, inputs, others, message", CASES)
def test_shapes_that_do_not_fit_are_refused(name, inputs, others, message, is_symbolic):
    def tensor(name, shape):
        dtype = "bool" if "mask" in name else "float32"
        return keras.Input(batch_shape=shape, dtype=dtype) if is_symbolic else np.ones(shape, dtype)

    embedding = TiedEmbedding(9, 8)
    special = {"embedding": lambda: embedding, "attention": lambda: MultiHeadAttention(2, 4),
               "logits": lambda: lambda states: embedding(states, reverse=True)}  # fmt: skip
    layer, others = (
        {**LAYERS, **special}[name](),
        {n: tensor(n, s) for n, s in others.items()},
    )
    with pytest.raises(ValueError, match=f"^.*{message}.*Received: "):
        layer(tensor("inputs", inputs), **others)


@pytest.mark.parametrize("name", LAYERS)
def test_a_size_that_is_not_known_and_one_that_is_broadcast_fit(name):
    for length in (5, None):
        inputs = keras.Input(batch_shape=(None, length, 8))
        mask = keras.Input(batch_shape=(None, length), dtype="bool")
        everywhere = np.ones((1, 1, 5), bool)
        masks = {"padding_mask": mask, "attention_mask": everywhere} if length else {}
        assert LAYERS[name]()(inputs, **masks).shape == (None, length, 8)
    states, mask = np.ones(STATES, "float32"), np.ones((2, 1, 5), bool)
    assert LAYERS[name]()(states, attention_mask=mask).shape == STATES


@pytest.mark.parametrize("stack, block", [(Encoder, DecoderBlock), (Decoder, EncoderBlock)])
def test_blocks_of_the_other_stack_are_refused(stack, block):
    with pytest.raises(ValueError, match="encoder blocks in an `Encoder`.*Received: blocks="):
        stack([block(2, 12)])


@pytest.mark.parametrize("shape", [(5, 16), (1, 5, 5, 16)])
@pytest.mark.parametrize("make", [
    SinusoidalPositionEncoding, lambda: LearnedPositionEmbedding(20),
])  # fmt: skip
def test_states_of_another_rank_get_no_positions(make, shape):
    with pytest.raises(ValueError, match="`inputs` must have the shape .batch, length, d_model"):
        make()(np.zeros(shape, "float32"))
