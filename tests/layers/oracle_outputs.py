"""The outputs of built layers by the NumPy oracle, from a dict of their call arguments."""

import numpy as np

from keras_transformer.layers import Decoder
from tests.layers.oracle_parameters import (
    array,
    attention_parameters,
    block_parameters,
    feed_forward_parameters,
    norm_parameters,
    stack_parameters,
)
from tests.oracle import transformer as oracle


def of_sentences(function):
    """Apply an oracle of one sentence, `function(layer, inputs of the sentence)`, to the batch."""

    def expected(layer, inputs):
        rows = range(len(next(iter(inputs.values()))))
        results = [
            function(layer, {name: value[i] for name, value in inputs.items()}) for i in rows
        ]
        if isinstance(results[0], tuple):
            return tuple(map(np.stack, zip(*results, strict=True)))
        return np.stack(results)

    return expected


def mask_of(x, *shape):
    mask = x.get("attention_mask")
    return None if mask is None else np.broadcast_to(mask, shape)


@of_sentences
def multi_head_attention(layer, x):
    """The outputs and the weights."""
    params, mask = attention_parameters(layer), mask_of(x, len(x["query"]), len(x["value"]))
    return oracle.multi_head_attention(
        params, layer.num_heads, x["query"], x["value"], x.get("key"), mask
    )


@of_sentences
def scaled_dot_product_attention(layer, x):
    """The outputs and the weights."""
    query, key, value = x["query"], x["key"], x["value"]  # [heads, length, dim]
    mask = mask_of(x, query.shape[1], key.shape[1])
    heads = [oracle.attention(*head, mask) for head in zip(query, key, value, strict=True)]
    return tuple(map(np.stack, zip(*heads, strict=True)))


@of_sentences
def encoder_block(layer, x):
    masks = x.get("padding_mask"), x.get("attention_mask")
    params, heads = block_parameters(layer), layer.num_heads
    return oracle.encoder_block(params, heads, x["inputs"], *masks, layer.norm)


@of_sentences
def decoder_block(layer, x):
    masks = x.get("padding_mask"), x.get("encoder_padding_mask")
    return oracle.decoder_block(
        block_parameters(layer), layer.num_heads, x["inputs"], x.get("encoder_outputs"), *masks,
        layer.norm, cross_mask=x.get("encoder_attention_mask"),
    )  # fmt: skip


@of_sentences
def stack(layer, x):
    block, params, mask = layer.blocks[0], stack_parameters(layer), x.get("padding_mask")
    if not isinstance(layer, Decoder):
        return oracle.encoder(params, block.num_heads, x["inputs"], mask, block.norm)
    memory = x["encoder_outputs"], mask, x["encoder_padding_mask"]
    return oracle.decoder(params, block.num_heads, x["inputs"], *memory, block.norm)


@of_sentences
def layer_normalization(layer, x):
    return oracle.layer_norm(norm_parameters(layer), x["inputs"])


def feed_forward(layer, x):
    activation = {"relu": oracle.relu, "tanh": np.tanh}[layer.activation.__name__]
    return oracle.feed_forward(feed_forward_parameters(layer), x["inputs"], activation)


@of_sentences
def embedded(layer, x):
    return oracle.embed(array(layer.embeddings), x["inputs"])


def learned_positions(layer, x):
    return x["inputs"] + array(layer.embeddings)[: x["inputs"].shape[1]]
