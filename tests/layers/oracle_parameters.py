"""The weights of our layers as the parameters of the NumPy oracle."""

import numpy as np
from keras import ops


def array(tensor):
    return np.asarray(ops.convert_to_numpy(tensor)).astype("float64")


def randomize(layer, seed=0, scale=1.0):
    """Give every weight, biases and norms included, a value that matters."""
    rng = np.random.default_rng(seed)
    for weight in layer.weights:
        fan_in = weight.shape[0] if len(weight.shape) == 2 else 4
        values = rng.normal(size=weight.shape) * scale / np.sqrt(fan_in)
        weight.assign(values + (1.0 if weight.path.endswith("gamma") else 0.0))


def attention_parameters(layer):
    params = {}
    for name in ("query", "key", "value", "output"):
        params[name] = array(getattr(layer, f"{name}_dense").kernel)
        if layer.use_bias:
            params[f"{name}_bias"] = array(getattr(layer, f"{name}_dense").bias)
    return params


def feed_forward_parameters(layer):
    params = {"inner": array(layer.inner_dense.kernel), "outer": array(layer.outer_dense.kernel)}
    if layer.use_bias:
        params["inner_bias"] = array(layer.inner_dense.bias)
        params["outer_bias"] = array(layer.outer_dense.bias)
    return params


def norm_parameters(layer):
    return {"scale": array(layer.gamma), "shift": array(layer.beta)}


def block_parameters(block):
    params = {
        "feed_forward": feed_forward_parameters(block.feed_forward),
        "feed_forward_norm": norm_parameters(block.feed_forward_norm),
    }
    for name in ("attention", "self_attention", "cross_attention"):
        if getattr(block, name, None) is not None:
            params[name] = attention_parameters(getattr(block, name))
            params[f"{name}_norm"] = norm_parameters(getattr(block, f"{name}_norm"))
    return params


def stack_parameters(stack):
    params = {"blocks": [block_parameters(block) for block in stack.blocks]}
    if stack.embedding_norm_layer is not None:
        params["embedding_norm"] = norm_parameters(stack.embedding_norm_layer)
    if stack.norm_layer is not None:
        params["final_norm"] = norm_parameters(stack.norm_layer)
    if stack.position is not None and stack.position.weights:
        params["positions"] = array(stack.position.embeddings)
    return params


def transformer_parameters(model):
    bias = model.target_embedding.bias
    biases = {} if bias is None else {"output_bias": array(bias)}
    return biases | {
        "source": array(model.source_embedding.embeddings),
        "target": array(model.target_embedding.embeddings),
        "encoder": stack_parameters(model.encoder),
        "decoder": stack_parameters(model.decoder),
    }
