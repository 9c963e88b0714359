"""The modules of `torch.nn` that there is a bridge to, beside ours."""

import numpy as np

from keras_transformer.bridges import from_torch, to_torch
from tests.bridges.comparison import errors_against_torch, randomize_torch

KINDS = (
    "MultiheadAttention",
    "TransformerEncoderLayer",
    "TransformerDecoderLayer",
    "TransformerEncoder",
    "TransformerDecoder",
)


def make_module(kind, case, **options):
    """A module in evaluation mode with random weights; pre-norm stacks end in a norm."""
    import torch

    dtype = getattr(torch, case.dtype)
    if kind == "MultiheadAttention":
        module = torch.nn.MultiheadAttention(
            case.d_model, case.num_heads, batch_first=True, dtype=dtype, **options
        )
    else:
        layer = kind.removesuffix("Layer") + "Layer"
        module = getattr(torch.nn, layer)(
            case.d_model,
            case.num_heads,
            case.intermediate_dim,
            dropout=0.0,
            activation=case.activation,
            layer_norm_eps=case.epsilon,
            batch_first=True,
            norm_first=case.norm == "pre",
            dtype=dtype,
            **options,
        )
        if kind != layer:
            norm = torch.nn.LayerNorm(case.d_model, case.epsilon, dtype=dtype)
            nested = {"enable_nested_tensor": False} if "Encoder" in kind else {}
            module = getattr(torch.nn, kind)(
                module, case.num_layers, norm if case.norm == "pre" else None, **nested
            )
    randomize_torch(module, case.generator())
    return module.eval()


def torch_errors(kind, case, **options):
    """Errors of our layer with the weights of a module against the module."""
    module = make_module(kind, case, **options)
    layer = from_torch(module)
    inputs, *both = calls(kind, case, layer, module)
    cotangent = case.states(np.random.default_rng(1), case.length)
    return errors_against_torch(layer, module, both, inputs, cotangent, to_torch)


def hidden(mask, num_heads=None):
    """Torch's mask of ours: True where a position is hidden, for each head if there are heads."""
    import torch

    if mask is None:
        return None
    return torch.tensor(~(mask if num_heads is None else np.repeat(mask, num_heads, axis=0)))


def calls(kind, case, layer, module):
    """Inputs, and how to call our layer and torch's module on them with the same masks."""
    if kind == "MultiheadAttention":
        return _attention_calls(case, layer, module)
    peer_calls = _encoder_calls if "Encoder" in kind else _decoder_calls
    inputs, ours, theirs = peer_calls(kind, case)
    return inputs, lambda *x: layer(*x, **ours), lambda *x: module(*x, **theirs)


def _attention_calls(case, layer, module):
    rng, length, source_length = case.generator(), case.length, case.source_length
    query = case.states(rng, length)
    value, key = (
        rng.normal(size=(case.batch, source_length, width)).astype(case.dtype)
        for width in (module.vdim, module.kdim)
    )
    padding = case.padding_mask(rng, source_length)
    is_causal = "causal" in case.masks
    mask = case.attention_mask(rng, length, source_length)
    visible = np.ones((case.batch, length, source_length), bool) if mask is None else mask
    causal = visible & np.tri(length, source_length, dtype=bool) if is_causal else mask
    ours = {
        "attention_mask": visible if padding is None else visible & padding[:, None],
        "use_causal_mask": is_causal,
    }
    theirs = {"key_padding_mask": hidden(padding), "attn_mask": hidden(causal, case.num_heads)}

    def call_theirs(query, value, key):
        return module(query, key, value, **theirs, need_weights=False)[0]

    return [query, value, key], lambda *inputs: layer(*inputs, **ours), call_theirs


def _encoder_calls(kind, case):
    rng = case.generator()
    padding = case.padding_mask(rng, case.length)
    mask = case.attention_mask(rng, case.length, case.length, "causal" in case.masks)
    ours = {"padding_mask": padding, "attention_mask": mask}
    name = "src_mask" if kind.endswith("Layer") else "mask"
    theirs = {name: hidden(mask, case.num_heads), "src_key_padding_mask": hidden(padding)}
    return [case.states(rng, case.length)], ours, theirs


def _decoder_calls(kind, case):
    rng, length, source_length = case.generator(), case.length, case.source_length
    padding, source_padding = (case.padding_mask(rng, n) for n in (length, source_length))
    mask = case.attention_mask(rng, length, length)
    visible = np.ones((case.batch, length, length), bool) if mask is None else mask
    cross_mask = case.attention_mask(rng, length, source_length)
    ours = {
        "padding_mask": padding,
        "encoder_padding_mask": source_padding,
        "attention_mask": mask,
        "encoder_attention_mask": cross_mask,
    }
    theirs = {
        # Ours is causal by itself.
        "tgt_mask": hidden(visible & np.tri(length, dtype=bool), case.num_heads),
        "memory_mask": hidden(cross_mask, case.num_heads),
        "tgt_key_padding_mask": hidden(padding),
        "memory_key_padding_mask": hidden(source_padding),
    }
    return [case.states(rng, n) for n in (length, source_length)], ours, theirs
