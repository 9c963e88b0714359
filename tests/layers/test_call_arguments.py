"""Arguments that do not fit together are refused, by values and by shapes alone."""

import functools

import keras
import numpy as np
import pytest

from keras_transformer.layers import (
    Decoder,
    DecoderBlock,
    Encoder,
    EncoderBlock,
    MultiHeadAttention,
    TiedEmbedding,
)

STATES, SOURCE = (2, 5, 8), (2, 7, 8)
LAYERS = {
    "encoder": lambda: Encoder([EncoderBlock(2, 12)]),
    "decoder block": lambda: DecoderBlock(2, 12),
    "decoder": lambda: Decoder([DecoderBlock(2, 12)]),
    "attention": lambda: MultiHeadAttention(2, 4),
    "embedding": lambda: TiedEmbedding(9, 8),
    "logits": lambda: functools.partial(TiedEmbedding(9, 8), reverse=True),
}
CASES = [
    *((name, STATES, *case) for name in ("encoder", "decoder block") for case in (
        ({"padding_mask": (2, 4)}, "`padding_mask` .* 2, 5"),
        ({"padding_mask": (2, 1)}, "`padding_mask`"),
        ({"padding_mask": (3, 5)}, "`padding_mask`"),
        ({"attention_mask": (2, 5, 6)}, "`attention_mask`"),
        ({"attention_mask": (2, 5)}, "`attention_mask`"),
    )),
    ("decoder", STATES, {"encoder_outputs": (3, 7, 8)}, "`encoder_outputs` .* 2"),
    ("decoder", STATES, {"encoder_outputs": SOURCE, "encoder_padding_mask": (2, 5)},
     "`encoder_padding_mask`"),
    ("decoder", STATES, {"encoder_outputs": SOURCE, "encoder_attention_mask": (2, 5, 5)},
     "`encoder_attention_mask`"),
    *((name, (5, 8), {}, "`inputs`") for name in ("encoder", "decoder block", "decoder")),
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

    others = {name: tensor(name, shape) for name, shape in others.items()}
    with pytest.raises(ValueError, match=f"{message}.*Received: "):
        LAYERS[name]()(tensor("inputs", inputs), **others)
