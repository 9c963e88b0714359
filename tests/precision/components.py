"""What is measured in every precision, and the bound on each error.

The bound is `eps * sqrt(n)`. eps is the distance of 1 from the next number of the compute dtype,
and n counts the results on the longest way from an input to the output that are rounded to that
dtype: a matrix product is three, for its kernel, its products and their sum. A rounding is off by
up to eps / 2, 0.29 eps in the root mean square; n of them, independent, add up to 0.29 eps sqrt(n),
and the largest of some hundred numbers is about 3.5 times that. Gradients come nearest to it: a
ReLU whose input is all but zero may open or close.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

from tests.precision import measurements as measure


def at_least_float32(dtype):
    return dtype if dtype == "float64" else "float32"


@dataclasses.dataclass(frozen=True)
class Component:
    """A measurement and its bound.

    Args:
        measure: function of a policy to an error.
        bound: function of a policy to the largest error allowed.
    """

    measure: Callable
    bound: Callable


def roundings(number):
    """The bound for results of the compute dtype."""
    return lambda policy: math.sqrt(number) * measure.epsilon(measure.compute_dtype(policy))


def wide_roundings(number):
    """The bound for results of at least float32."""
    return lambda policy: (
        math.sqrt(number) * measure.epsilon(at_least_float32(measure.compute_dtype(policy)))
    )


def sinusoid_bound(policy):
    """A quarter of an eps, what a cast does to numbers below 1, and the computation before it.

    In float32 that has some roundings of angles of up to a turn, 6.3; in float64 the wavelength's
    own rounding counts, since the angle at position 5,000 is 5,000 times as far off.
    """
    dtype = measure.compute_dtype(policy)
    if dtype == "float64":
        return measure.LAST_POSITION * measure.epsilon("float64")
    return 8 * measure.epsilon("float32") + (
        0 if dtype == "float32" else measure.epsilon(dtype) / 4
    )


ATTENTION = 3 + 1 + 2 + 1 + 2 + 3  # Queries, scaled; scores; weights; heads; output.
FEED_FORWARD = 3 + 1 + 3 + 1  # Two maps with biases.
RESIDUAL = 1 + 2  # A sum and a norm, with the cast of its scale.
ENCODER_BLOCK = ATTENTION + FEED_FORWARD + 2 * RESIDUAL
DECODER_BLOCK = 2 * ATTENTION + FEED_FORWARD + 3 * RESIDUAL
ENCODER, DECODER = 2 + 2 * ENCODER_BLOCK, 2 + 2 * DECODER_BLOCK
# From a source id to the logits: through the encoder, and every block of the decoder.
TRANSFORMER = 3 + ENCODER + 2 * DECODER_BLOCK + 3


def pre_norm(function):
    return functools.partial(function, norm="pre")


COMPONENTS = {
    "TiedEmbedding, lookup": Component(measure.embedding_lookup, roundings(3)),
    "TiedEmbedding, logits": Component(measure.embedding_logits, roundings(3)),
    "SinusoidalPositionEncoding to position 5,000": Component(measure.sinusoids, sinusoid_bound),
    "LearnedPositionEmbedding": Component(measure.learned_positions, roundings(2)),
    "LayerNormalization": Component(measure.layer_normalization, roundings(3)),
    "ScaledDotProductAttention": Component(measure.scaled_dot_product_attention, roundings(6)),
    "MultiHeadAttention": Component(measure.multi_head_attention, roundings(ATTENTION + 2)),
    "FeedForward": Component(measure.feed_forward, roundings(FEED_FORWARD)),
    "EncoderBlock": Component(measure.encoder_block, roundings(ENCODER_BLOCK)),
    "EncoderBlock, pre-norm": Component(pre_norm(measure.encoder_block), roundings(ENCODER_BLOCK)),
    "DecoderBlock": Component(measure.decoder_block, roundings(DECODER_BLOCK)),
    "DecoderBlock, pre-norm": Component(pre_norm(measure.decoder_block), roundings(DECODER_BLOCK)),
    "Encoder": Component(measure.encoder, roundings(ENCODER)),
    "Decoder": Component(measure.decoder, roundings(DECODER)),
    "Transformer, logits": Component(measure.transformer, roundings(TRANSFORMER)),
    "Transformer, logits, pre-norm": Component(
        pre_norm(measure.transformer), roundings(TRANSFORMER)
    ),
    # The way back is as long as the way there.
    "Transformer, gradient": Component(measure.transformer_gradient, roundings(2 * TRANSFORMER)),
    "Transformer, gradient, pre-norm": Component(
        pre_norm(measure.transformer_gradient), roundings(2 * TRANSFORMER)
    ),
    "LabelSmoothedCrossEntropy": Component(measure.loss, wide_roundings(4)),
}
