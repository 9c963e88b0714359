"""Length normalisation of beam search scores."""

import math
import numbers

from keras import ops

NORMALIZATIONS = ("gnmt", "length")


def length_penalty(lengths, alpha, normalization="gnmt"):
    """The number a log-probability is divided by: `((5 + length) / 6) ** alpha`.

    The paper (Vaswani et al., 2017, section 6.1) takes alpha 0.6 and the formula of Wu et al.
    (2016, equation 14): `"gnmt"`. `"length"` is `length ** alpha`, which fairseq and CTranslate2
    use; the two rank differently.

    Args:
        lengths: numbers of generated tokens, with EOS, without BOS; any shape. Lengths below 1
            count as 1 under `"length"`.
        alpha: strength, a number that is not negative; 0 is no normalisation.
        normalization: `"gnmt"` or `"length"`.

    Returns:
        A float tensor of the shape of `lengths`: float32, or the dtype of `lengths` if that is a
        wider float.

    Raises:
        ValueError: if `alpha` is negative or not a number, or `normalization` is unknown.

    Example:

    >>> from keras_transformer.decoding import length_penalty
    >>> float(length_penalty(7, alpha=1.0))
    2.0
    """
    check_length_penalty(alpha, normalization)
    lengths = ops.convert_to_tensor(lengths)
    if "float64" not in str(lengths.dtype):
        lengths = ops.cast(lengths, "float32")
    if normalization == "gnmt":
        return ops.power((5.0 + lengths) / 6.0, alpha)
    return ops.power(ops.maximum(lengths, 1.0), alpha)


def check_length_penalty(alpha, normalization):
    """Raises a ValueError for an alpha or a normalisation that no search can use."""
    # With a negative alpha, longer hypotheses lose score and the early stop is no longer exact.
    is_number = isinstance(alpha, numbers.Real) and not isinstance(alpha, bool)
    if not is_number or not math.isfinite(alpha) or alpha < 0:
        raise ValueError(
            f"`length_penalty` must be a number >= 0. Received: length_penalty={alpha!r}"
        )
    if normalization not in NORMALIZATIONS:
        raise ValueError(
            f"`length_normalization` must be one of {NORMALIZATIONS}. "
            f"Received: length_normalization={normalization!r}"
        )
