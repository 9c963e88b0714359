"""transformers' MarianMTModel beside our Transformer."""

import numpy as np
from keras import ops

from keras_transformer.bridges import from_marian, to_marian
from tests.bridges.comparison import errors_against_torch, randomize_torch

VOCAB_SIZE = 13
MAX_LENGTH = 16


def make_marian(case, **settings):
    """A model with random weights, in evaluation mode, that the bridge supports."""
    import torch
    import transformers

    config = {
        "vocab_size": VOCAB_SIZE, "d_model": case.d_model, "activation_function": case.activation,
        "max_position_embeddings": MAX_LENGTH, "scale_embedding": True, "dropout": 0.0,
        "pad_token_id": 0, "decoder_start_token_id": 2, "bos_token_id": 2, "eos_token_id": 3,
        "forced_eos_token_id": None,
    }  # fmt: skip
    for side in ("encoder", "decoder"):
        sizes = (case.num_layers, case.num_heads, case.intermediate_dim)
        for name, size in zip(("layers", "attention_heads", "ffn_dim"), sizes, strict=True):
            config[f"{side}_{name}"] = size
    config = transformers.MarianConfig(**{**config, **settings})
    model = transformers.MarianMTModel(config).to(getattr(torch, case.dtype))
    randomize_torch(model, case.generator())
    if case.dtype == "float64":  # Their table has the digits of float32.
        frequencies = 10_000 ** (-np.arange(0, case.d_model, 2) / case.d_model)
        angles = np.outer(np.arange(MAX_LENGTH), frequencies)
        table = torch.tensor(np.hstack([np.sin(angles), np.cos(angles)]))
        model.model.encoder.embed_positions.weight.copy_(table)
        model.model.decoder.embed_positions.weight.copy_(table)
    return model.eval()


def draw_ids(case):
    """Source and target of random lengths, with padding behind if the case has it."""
    rng = case.generator()

    def ids(length):
        values = rng.integers(1, VOCAB_SIZE, (case.batch, length)).astype("int32")
        padding = case.padding_mask(rng, length)
        return values if padding is None else np.where(padding, values, 0).astype("int32")

    return ids(case.source_length), ids(case.length)


def marian_call(model, source, target):
    """The logits of teacher forcing, zero at padded positions, where the two differ."""
    import torch

    source, target = (torch.tensor(ids).long() for ids in (source, target))
    logits = model(
        input_ids=source,
        attention_mask=source != 0,
        decoder_input_ids=target,
        decoder_attention_mask=target != 0,
        use_cache=False,
    ).logits
    return torch.where((target != 0)[..., None], logits, 0.0)


def marian_errors(case):
    """Errors of a Transformer with the weights of a MarianMTModel against it."""
    marian = make_marian(case)
    model = from_marian(marian)
    source, target = draw_ids(case)
    is_token = (target != 0)[..., None]
    rng = np.random.default_rng(1)
    cotangent = is_token * rng.normal(size=(case.batch, case.length, VOCAB_SIZE))
    cotangent = cotangent.astype(case.dtype)

    def call_ours():
        logits = model({"source": source, "target": target})
        return ops.multiply(logits, is_token.astype(case.dtype))

    def call_theirs():
        return marian_call(marian, source, target)

    both = (call_ours, call_theirs)
    return errors_against_torch(model, marian, both, [], cotangent, to_marian)
