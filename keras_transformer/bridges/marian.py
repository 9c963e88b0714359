"""transformers' `MarianMTModel`, to and from our `Transformer`.

Marian is the paper's model with biases in the attentions, but for the order of its channels: its
sinusoids are all sines followed by all cosines, `[sin_0, sin_1, ..., cos_0, cos_1, ...]`, and ours
alternate, `[sin_0, cos_0, sin_1, cos_1, ...]`. Nothing in a Transformer depends on the order of
the channels of its residual stream as long as every weight keeps the same one: maps sum over the
channels, and layer norm takes their mean and variance. So the stream's axis of every weight is
permuted, and the two models are equal. The axes inside heads and feed-forward networks stay.
"""

import numpy as np

from keras_transformer.bridges.peer import (
    activation_name,
    check_built,
    check_supported,
    check_type,
    import_peer,
    single,
)
from keras_transformer.bridges.torch_tensors import (
    linear_pairs,
    norm_pairs,
    tensor_values,
    torch_dtype,
    variable_values,
    write_values,
)
from keras_transformer.models import Transformer, TransformerConfig

# Marian's activation_function -> Keras activation; Marian knows the names of Keras as well.
_ACTIVATIONS = {"relu": "relu", "swish": "silu", "silu": "silu", "gelu": "gelu"}
_SETTINGS = {
    "scale_embedding": True,
    "share_encoder_decoder_embeddings": True,
    "tie_word_embeddings": True,
    "pad_token_id": 0,
    "encoder_layerdrop": 0,
    "decoder_layerdrop": 0,
}
# Both sides have these; ours has one value for both.
_SIDES = {"attention_heads": "num_heads", "ffn_dim": "intermediate_dim"}
_MAPS = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"}
_ENCODER_ATTENTIONS = {"attention": "self_attn"}
_DECODER_ATTENTIONS = {"self_attention": "self_attn", "cross_attention": "encoder_attn"}
_BOS_ID, _EOS_ID = 2, 3


def from_marian(model, dtype=None):
    """Return a `Transformer` with the weights of a `transformers.MarianMTModel`.

    The logits at real positions are the same in teacher forcing and step by step. Differs from
    Marian: padding is id 0, found in the ids themselves, and looked up as zeros; Marian takes
    `attention_mask`, `True` = attend.

    Args:
        model: A `MarianMTModel` whose configuration has `scale_embedding=True`,
            `share_encoder_decoder_embeddings=True`, `tie_word_embeddings=True`, `pad_token_id=0`,
            another `decoder_start_token_id` than that, as many heads and as wide feed-forward
            networks in the encoder as in the decoder, and whose `final_logits_bias` is zero.
        dtype: Dtype policy of the model; None for the dtype of Marian's weights.

    Returns:
        A `Transformer` with `use_bias=True`, with Marian's rates of dropout.

    Raises:
        ValueError: If the model is another one. The published Helsinki-NLP models are: they start
            from the padding id and add a bias to the logits.
        ImportError: If transformers or torch is not installed.

    Example:

    >>> from keras_transformer.bridges import from_marian, to_marian
    >>> model = keras_transformer.Transformer.from_preset("tiny", vocab_size=1000, norm="post")
    >>> marian = to_marian(model)
    >>> ids = np.array([[5, 6, 3]], dtype="int32")
    >>> ops.shape(from_marian(marian)({"source": ids, "target": ids}))
    (1, 3, 1000)
    """
    transformers = import_peer("transformers", "oracles")
    import_peer("torch", "oracles")
    check_type("model", model, [transformers.MarianMTModel])
    _check_marian(model)
    sides = {ours: getattr(model.config, f"encoder_{name}") for name, ours in _SIDES.items()}
    config = TransformerConfig(
        vocab_size=model.config.vocab_size,
        num_encoder_layers=model.config.encoder_layers,
        num_decoder_layers=model.config.decoder_layers,
        d_model=model.config.d_model,
        dropout=float(model.config.dropout),
        attention_dropout=float(model.config.attention_dropout),
        activation_dropout=float(model.config.activation_dropout),
        activation=_ACTIVATIONS[model.config.activation_function],
        use_bias=True,
        norm_epsilon=single("eps", (norm.eps for norm in _norms(model))),
        **sides,
    )
    dtype = dtype or str(model.lm_head.weight.dtype).removeprefix("torch.")
    transformer = Transformer(config, dtype=dtype)
    to_ours = np.argsort(_marian_order(config.d_model))
    for variable, tensor, axis in _pairs(transformer, model):
        values = tensor_values(tensor)
        variable.assign(values if axis is None else values.take(to_ours, axis))
    return transformer


def to_marian(model, max_length=1024):
    """Return a `transformers.MarianMTModel` with the weights of a `Transformer`.

    Args:
        model: A `Transformer` with one vocabulary, post-norm, sinusoidal positions, keys and values
            of size d_model / num_heads, and ReLU, SiLU or GELU.
        max_length: Longest sequence of the new model, which keeps a table of positions.

    Returns:
        A new model on the CPU, in evaluation mode, whose `generate` starts from BOS 2 and ends at
        EOS 3. Attentions have biases, of zero where ours have none. Marian's configuration does
        not hold the epsilon of the layer norms: after `save_pretrained` and `from_pretrained` it is
        torch's 1e-5, and outputs of a model with the default `norm_epsilon` of 1e-6 move in the
        sixth digit.

    Raises:
        ValueError: If Marian has no such model.
        ImportError: If transformers or torch is not installed.

    Example:

    >>> model = keras_transformer.Transformer.from_preset("tiny", vocab_size=1000, norm="post")
    >>> keras_transformer.bridges.to_marian(model).config.d_model
    128
    """
    transformers = import_peer("transformers", "oracles")
    import_peer("torch", "oracles")
    check_type("model", model, [Transformer])
    check_built(model)
    config = model.config
    _check_transformer(config)
    sides = {
        f"{side}_{name}": getattr(config, ours)
        for name, ours in _SIDES.items()
        for side in ("encoder", "decoder")
    }
    marian_config = transformers.MarianConfig(
        vocab_size=config.vocab_size,
        max_position_embeddings=max_length,
        encoder_layers=config.num_encoder_layers,
        decoder_layers=config.num_decoder_layers,
        d_model=config.d_model,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        activation_dropout=config.activation_dropout,
        activation_function=activation_name(config.activation, ("relu", "silu", "gelu")),
        decoder_start_token_id=_BOS_ID,
        bos_token_id=_BOS_ID,
        eos_token_id=_EOS_ID,
        forced_eos_token_id=None,
        **sides,
        **_SETTINGS,
    )
    marian = transformers.MarianMTModel(marian_config).to(torch_dtype(model.encoder))
    for norm in _norms(marian):
        norm.eps = config.norm_epsilon
    # Theirs is computed in float32, whatever the dtype.
    for table in _position_tables(marian):
        write_values(table, _sinusoids(*table.shape))
    to_marian_order = _marian_order(config.d_model)
    for variable, tensor, axis in _pairs(model, marian):
        values = np.zeros(tensor.shape) if variable is None else variable_values(variable)
        write_values(tensor, values if axis is None else values.take(to_marian_order, axis))
    return marian.eval()


def _marian_order(d_model):
    """Return for each channel of Marian's residual stream the channel of ours."""
    return np.concatenate([np.arange(0, d_model, 2), np.arange(1, d_model, 2)])


def _sinusoids(length, d_model):
    """Return Marian's table of positions, sines first."""
    angles = np.arange(length)[:, None] / 10_000 ** (np.arange(0, d_model, 2) / d_model)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


def _position_tables(marian):
    stacks = (marian.model.encoder, marian.model.decoder)
    return [stack.embed_positions.weight.detach() for stack in stacks]


def _norms(marian):
    import torch

    return [one for one in marian.modules() if isinstance(one, torch.nn.LayerNorm)]


def _pairs(transformer, marian):
    """Yield our variable, Marian's tensor in its layout, and the axis of the residual stream."""
    yield transformer.target_embedding.embeddings, marian.model.shared.weight.detach(), 1
    for stack, layers, attentions in (
        (transformer.encoder, marian.model.encoder.layers, _ENCODER_ATTENTIONS),
        (transformer.decoder, marian.model.decoder.layers, _DECODER_ATTENTIONS),
    ):
        for block, layer in zip(stack.blocks, layers, strict=True):
            yield from _block_pairs(block, layer, attentions)


def _block_pairs(block, layer, attentions):
    for ours, theirs in attentions.items():
        attention = getattr(block, ours)
        for name, map_name in _MAPS.items():
            yield from _map_pairs(
                getattr(attention, f"{name}_kernel"),
                getattr(attention, f"{name}_bias"),
                getattr(getattr(layer, theirs), map_name),
                is_output=name == "output",
            )
        norm = getattr(layer, f"{theirs}_layer_norm")
        yield from ((*pair, 0) for pair in norm_pairs(getattr(block, f"{ours}_norm"), norm))
    maps = block.feed_forward
    yield from _map_pairs(maps.inner_kernel, maps.inner_bias, layer.fc1, is_output=False)
    yield from _map_pairs(maps.outer_kernel, maps.outer_bias, layer.fc2, is_output=True)
    norm = layer.final_layer_norm
    yield from ((*pair, 0) for pair in norm_pairs(block.feed_forward_norm, norm))


def _map_pairs(kernel, bias, linear, is_output):
    """Yield the pairs of a map from the residual stream, or one that `is_output` into it."""
    kernel_pair, bias_pair = linear_pairs(kernel, bias, linear)
    yield (*kernel_pair, 1 if is_output else 0)
    yield (*bias_pair, 0 if is_output else None)


def _check_marian(model):
    config = model.config
    for name, value in _SETTINGS.items():
        received = getattr(config, name)
        check_supported(
            received == value,
            f"A MarianMTModel must have {name}={value}",
            f"{name}={received!r}",
        )
    check_supported(
        config.decoder_start_token_id != config.pad_token_id,
        "`decoder_start_token_id` must be another id than padding, which is masked here",
        f"decoder_start_token_id={config.decoder_start_token_id!r}",
    )
    for name in _SIDES:
        single(name, (getattr(config, f"{side}_{name}") for side in ("encoder", "decoder")))
    check_supported(
        config.activation_function in _ACTIVATIONS,
        f"`activation_function` must be one of {', '.join(map(repr, _ACTIVATIONS))}",
        f"activation_function={config.activation_function!r}",
    )
    largest = float(model.final_logits_bias.abs().max())
    check_supported(
        largest == 0,
        "`final_logits_bias` must be zero: the logits have no bias here",
        f"final_logits_bias of up to {largest}",
    )
    for table in _position_tables(model):
        values = tensor_values(table)
        check_supported(
            np.allclose(values, _sinusoids(*values.shape), atol=1e-2),
            "Positions must be Marian's sinusoids",
            "embed_positions with other values",
        )


def _check_transformer(config):
    head_dim = config.d_model / config.num_heads
    for name, allowed in {
        "target_vocab_size": [None],
        "norm": ["post"],
        "position": ["sinusoidal"],
        "key_dim": [None, head_dim],
        "value_dim": [None, head_dim],
    }.items():
        received = getattr(config, name)
        check_supported(
            received in allowed,
            f"Marian has only models with {name}={' or '.join(map(repr, allowed))}",
            f"{name}={received!r}",
        )
