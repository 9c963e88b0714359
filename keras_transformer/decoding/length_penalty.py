"""Length normalisation of beam search scores."""

from keras import ops

from keras_transformer.layers.checks import check_choice, checked_number
from keras_transformer.layers.dtypes import Tensor

NORMALIZATIONS = ("gnmt", "length")
# With a larger alpha the penalty of a long hypothesis is infinite in float32.
_LARGEST_ALPHA = 10


def length_penalty(lengths: Tensor, alpha: float, normalization: str = "gnmt") -> Tensor:
    """Returns the divisor of a log-probability, `((5 + length) / 6) ** alpha`.

    The paper (Vaswani et al., 2017, section 6.1) takes alpha 0.6 and the formula of Wu et al.
    (2016, equation 14): `"gnmt"`. `"length"` is `length ** alpha`, which fairseq and CTranslate2
    use; the two rank differently.

    Args:
        lengths: Numbers of generated tokens, with EOS, without BOS; any shape. Lengths below 1
            count as 1 under `"length"`.
        alpha: Strength, a number from 0 to 10; with 0 there is no normalisation.
        normalization: `"gnmt"` or `"length"`.

    Returns:
        A float tensor of the shape of `lengths`: float32, or the dtype of `lengths` if that is a
        wider float.

    Raises:
        ValueError: If `alpha` is out of range or not a number, or `normalization` is unknown.

    Example:

    >>> from keras_transformer.decoding import length_penalty
    >>> float(length_penalty(7, alpha=1.0))
    2.0
    """
    alpha = checked_length_penalty(alpha, normalization)
    lengths = ops.convert_to_tensor(lengths)
    if "float64" not in str(lengths.dtype):
        lengths = ops.cast(lengths, "float32")
    if normalization == "gnmt":
        return ops.power((5.0 + lengths) / 6.0, alpha)
    return ops.power(ops.maximum(lengths, 1.0), alpha)


def checked_length_penalty(alpha: float, normalization: str) -> float:
    """Returns alpha as a `float`, or raises a ValueError if an argument is not allowed."""
    # With a negative alpha, longer hypotheses lose score and the early stop is no longer exact.
    alpha = checked_number("length_penalty", alpha, 0, _LARGEST_ALPHA)
    check_choice("length_normalization", normalization, NORMALIZATIONS)
    return alpha
