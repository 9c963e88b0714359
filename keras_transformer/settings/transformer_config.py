"""`TransformerConfig`: the sizes and the architecture of a Transformer."""

from typing import Annotated, Literal

from annotated_types import Ge, Le

from keras_transformer.settings.base import Positive, Rate, Settings, Size, settings_dataclass

# Each layer takes time to build, whatever its size.
Layers = Annotated[int, Ge(1), Le(1000)]
# A cache has room for the whole window, whatever the length.
Window = Annotated[int, Ge(1), Le(2**16)]


@settings_dataclass
class TransformerConfig(Settings):
    """The sizes of a `Transformer` and the choices of its architecture.

    The defaults describe the base model of the paper.

    Args:
        vocab_size: Number of source tokens; of all tokens if `target_vocab_size` is None.
        target_vocab_size: Number of target tokens, if the source has a vocabulary and an embedding
            of its own; None for one vocabulary, and one matrix shared by source, target and
            softmax.
        num_encoder_layers: Number of encoder blocks.
        num_decoder_layers: Number of decoder blocks.
        d_model: Width of the model.
        intermediate_dim: Width inside the feed-forward networks.
        num_heads: Number of attention heads, a divisor of the width.
        key_dim: Size of the queries and keys of a head; None for d_model / num_heads.
        value_dim: Size of the values of a head; None for d_model / num_heads.
        dropout: Dropout rate of sub-layer outputs and of the sum of embedding and position.
        attention_dropout: Dropout rate of attention weights; 0 in the paper.
        activation_dropout: Dropout rate inside the feed-forward networks; 0 in the paper.
        activation: Name of the Keras activation of the feed-forward networks, such as relu or gelu.
        norm: Place of layer normalization: `post`, after each sub-layer as in the paper, or `pre`,
            before it, which trains more steadily.
        position: Kind of positions: `sinusoidal` as in the paper, `learned` with a table of
            `max_length` for each side, or inside self-attention `relative` (Shaw et al., 2018) or
            `rotary` (Su et al., 2021).
        max_length: Maximum length of a sequence, which learned positions need; None for no maximum.
        use_bias: Whether the attention projections have biases; they have none in the paper.
        norm_epsilon: Number added to the variance in layer normalization.
        max_distance: Greatest distance with a vector of its own, for relative positions.
        sliding_window: Number of positions to each side that self-attention sees, a position itself
            included; None for all positions.
        flash_attention: Whether attention computes its scores by blocks, in memory that grows
            linearly with the length; None for a fused kernel where there is one, and blocks for
            inputs of a known, great length.
        remat: Whether to compute the blocks again in the gradient, which saves most of the memory
            of training and costs a third of its time.
        output_bias: Whether the logits have a bias, one number for each target token; they have
            none in the paper.
        embedding_norm: Whether a layer norm follows the sum of embedding and position, in encoder
            and decoder, as in mBART; there is none in the paper.

    Example:

    >>> config = keras_transformer.models.TransformerConfig(vocab_size=37000)
    >>> config.d_model
    512

    Reference: Vaswani et al. (2017), section 3 and Table 3.
    """

    vocab_size: Size
    target_vocab_size: Size | None = None
    num_encoder_layers: Layers = 6
    num_decoder_layers: Layers = 6
    d_model: Size = 512
    intermediate_dim: Size = 2048
    num_heads: Size = 8
    key_dim: Size | None = None
    value_dim: Size | None = None
    dropout: Rate = 0.1
    attention_dropout: Rate = 0.0
    activation_dropout: Rate = 0.0
    activation: str = "relu"
    norm: Literal["post", "pre"] = "post"
    position: Literal["sinusoidal", "learned", "relative", "rotary"] = "sinusoidal"
    max_length: Size | None = None
    use_bias: bool = False
    norm_epsilon: Positive = 1e-6
    max_distance: Size = 16
    sliding_window: Window | None = None
    flash_attention: bool | None = None
    remat: bool = False
    output_bias: bool = False
    embedding_norm: bool = False

    def __post_init__(self):
        _check_activation(self.activation)
        if self.position == "learned" and self.max_length is None:
            raise ValueError("position='learned' needs `max_length`. Received: max_length=None")
        if self.position == "sinusoidal" and self.d_model % 2:
            rule = "position='sinusoidal' needs an even `d_model`"
            raise ValueError(f"{rule}. Received: d_model={self.d_model}")
        if self.flash_attention and (self.attention_dropout or self.position == "relative"):
            raise ValueError(
                "`flash_attention` is not supported with dropout of attention weights or relative "
                f"positions. Received: attention_dropout={self.attention_dropout}, "
                f"position={self.position!r}"
            )
        if None in (self.key_dim, self.value_dim) and self.d_model % self.num_heads:
            raise ValueError(
                "`num_heads` must divide `d_model` unless `key_dim` and `value_dim` are given. "
                f"Received: num_heads={self.num_heads}, d_model={self.d_model}"
            )

    @property
    def output_vocab_size(self) -> int:
        """Number of target tokens, the width of the logits."""
        return self.target_vocab_size or self.vocab_size


def count_parameters(config: TransformerConfig) -> int:
    """Returns `Transformer(config).count_params()` without building the model.

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
    norms = 2 * norm * ((config.norm == "pre") + config.embedding_norm)
    positions = 0
    if config.position == "learned":
        positions = 2 * (config.max_length or 0) * d
    elif config.position == "relative":
        num_blocks = config.num_encoder_layers + config.num_decoder_layers
        widths = (queries + values) // config.num_heads
        positions = num_blocks * (2 * config.max_distance + 1) * widths
    vocabulary = config.vocab_size + (config.target_vocab_size or 0)
    output_bias = config.output_vocab_size if config.output_bias else 0
    return encoder + decoder + norms + positions + vocabulary * d + output_bias


def head_widths(config: TransformerConfig) -> tuple[int, int]:
    """Returns the total width of all heads, for queries (or keys) and for values."""
    key_width = config.num_heads * config.key_dim if config.key_dim else config.d_model
    value_width = config.num_heads * config.value_dim if config.value_dim else config.d_model
    return key_width, value_width


def _check_activation(activation: str) -> None:
    import keras

    try:
        is_known = bool(keras.activations.get(activation))
    except ValueError:
        is_known = False
    # `glu` halves the width, and `threshold` has no default threshold.
    if not is_known or activation in ("glu", "threshold"):
        raise ValueError(
            "`activation` must be the name of a Keras activation of the inputs alone that keeps "
            f"their shape, such as 'relu'. Received: {activation=}"
        )
