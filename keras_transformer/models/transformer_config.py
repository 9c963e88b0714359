"""The shape of a Transformer, validated and frozen."""

import dataclasses

import keras

from keras_transformer.layers.checks import (
    check_boolean,
    check_choice,
    check_positive_integer,
    check_positive_number,
    check_rate,
)
from keras_transformer.models.frozen_settings import FrozenSettings

_LARGEST_SIZE = 2**31 - 1  # ids and shapes are int32


@dataclasses.dataclass(frozen=True)
class TransformerConfig(FrozenSettings):
    """Everything that decides the weights and the function of a `Transformer`.

    The defaults are the paper's base model.

    Args:
        vocab_size: Number of source tokens; of all tokens if `target_vocab_size` is None.
        target_vocab_size: Number of target tokens. None: one vocabulary, and one matrix shared
            by source, target and softmax; otherwise the source has an embedding of its own.
        num_encoder_layers: Encoder blocks.
        num_decoder_layers: Decoder blocks.
        d_model: Width of the model.
        intermediate_dim: Width inside the feed-forward networks.
        num_heads: Attention heads.
        key_dim: Size of the queries and keys of a head; None for d_model / num_heads.
        value_dim: Size of the values of a head; None for d_model / num_heads.
        dropout: Dropout rate of sub-layer outputs and of the sum of embedding and position.
        attention_dropout: Dropout rate of attention weights; 0 in the paper.
        activation_dropout: Dropout rate inside the feed-forward networks; 0 in the paper.
        activation: Name of the activation of the feed-forward networks.
        norm: `"post"` as in the paper, or `"pre"`.
        position: `"sinusoidal"`, or `"learned"` with a table of `max_length` for each side.
        max_length: Longest sequence; needed for learned positions, otherwise None.
        use_bias: Whether the attention projections have biases; they have none in the paper.
        norm_epsilon: Added to the variance in the layer norms.

    Raises:
        ValueError: If a value is not allowed.

    Example:

    >>> config = keras_transformer.models.TransformerConfig(vocab_size=37000)
    >>> config.d_model
    512

    Reference: Vaswani et al. (2017), section 3 and Table 3.
    """

    vocab_size: int
    target_vocab_size: int | None = None
    num_encoder_layers: int = 6
    num_decoder_layers: int = 6
    d_model: int = 512
    intermediate_dim: int = 2048
    num_heads: int = 8
    key_dim: int | None = None
    value_dim: int | None = None
    dropout: float = 0.1
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    activation: str = "relu"
    norm: str = "post"
    position: str = "sinusoidal"
    max_length: int | None = None
    use_bias: bool = False
    norm_epsilon: float = 1e-6

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.type is int or (field.type == int | None and value is not None):
                check_positive_integer(field.name, value, _LARGEST_SIZE)
            elif field.type is float and field.name != "norm_epsilon":
                check_rate(field.name, value)
        check_boolean("use_bias", self.use_bias)
        check_positive_number("norm_epsilon", self.norm_epsilon)
        check_choice("norm", self.norm, ("post", "pre"))
        check_choice("position", self.position, ("sinusoidal", "learned"))
        _check_activation(self.activation)
        if self.position == "learned" and self.max_length is None:
            raise ValueError("position='learned' needs `max_length`. Received: max_length=None")
        if self.position == "sinusoidal" and self.d_model % 2:
            raise ValueError(
                f"position='sinusoidal' needs an even `d_model`. Received: d_model={self.d_model}"
            )
        has_default_head = self.key_dim is None or self.value_dim is None
        if has_default_head and self.d_model % self.num_heads:
            raise ValueError(
                "`num_heads` must divide `d_model` unless `key_dim` and `value_dim` are given. "
                f"Received: num_heads={self.num_heads}, d_model={self.d_model}"
            )

    @property
    def output_vocab_size(self):
        """Number of target tokens, the width of the logits."""
        return self.target_vocab_size or self.vocab_size


def count_parameters(config: TransformerConfig) -> int:
    """Returns the number of weights of a model, without making it.

    Args:
        config: `TransformerConfig`.

    Returns:
        int, as `Transformer(config).count_params()`.

    Example:

    >>> from keras_transformer.models.transformer_config import (
    ...     TransformerConfig, count_parameters)
    >>> count_parameters(TransformerConfig(vocab_size=37_000))
    63045632

    Reference: Vaswani et al. (2017), section 3.
    """
    d, hidden = config.d_model, config.intermediate_dim
    queries, values = head_widths(config)
    attention = 2 * d * queries + 2 * d * values
    if config.use_bias:
        attention += 2 * queries + values + d
    feed_forward = 2 * d * hidden + hidden + d
    norm = 2 * d
    encoder = config.num_encoder_layers * (attention + feed_forward + 2 * norm)
    decoder = config.num_decoder_layers * (2 * attention + feed_forward + 3 * norm)
    final_norms = 2 * norm if config.norm == "pre" else 0
    positions = 2 * config.max_length * d if config.position == "learned" else 0
    vocabulary = config.vocab_size + (config.target_vocab_size or 0)
    return encoder + decoder + final_norms + positions + vocabulary * d


def head_widths(config: TransformerConfig) -> tuple[int, int]:
    """Returns the widths of all queries (or keys) and of all values of an attention."""
    return tuple(
        config.num_heads * size if size else config.d_model
        for size in (config.key_dim, config.value_dim)
    )


def _check_activation(activation) -> None:
    try:
        is_known = isinstance(activation, str) and bool(keras.activations.get(activation))
    except ValueError:
        is_known = False
    # The one halves the width, the other has no default threshold.
    if not is_known or activation in ("glu", "threshold"):
        raise ValueError(
            "`activation` must be the name of a Keras activation of the inputs alone that keeps "
            f"their shape, such as 'relu'. Received: activation={activation!r}"
        )
