"""The gradient of `tests/oracle/transformer.py`, by the chain rule, one sentence at a time.

Nothing of the package is imported. Each `*_backward` takes what the forward function takes and
`upstream`, the gradient of the loss with respect to the forward function's output. It computes
again whatever it needs of the forward pass, and returns the gradients of the parameters, in dicts
like those of the parameters, and of the inputs. `test_backward.py` holds them against central
differences.
"""

import math

import numpy as np

from tests.oracle import transformer as forward


def attention_backward(query, key, value, mask, upstream):
    """Of equation (1). A row of weights w of scores s: dw/ds = diag(w) - w w^T."""
    _, weights = forward.attention(query, key, value, mask)
    d_weights = upstream @ value.T
    # Weights of masked keys are zero, and so are the gradients of their scores.
    d_scores = weights * (d_weights - (weights * d_weights).sum(axis=1, keepdims=True))
    d_scores = d_scores / math.sqrt(query.shape[1])
    return d_scores @ key, d_scores.T @ query, weights.T @ upstream


def linear_backward(params, name, inputs, upstream):
    """Of `inputs . W + b`; a bias has a gradient where there is a bias."""
    gradients = {name: inputs.T @ upstream}
    if f"{name}_bias" in params:
        gradients[f"{name}_bias"] = upstream.sum(axis=0)
    return gradients, upstream @ params[name].T


def multi_head_attention_backward(params, num_heads, query, value, key, mask, upstream):
    """Returns the gradients of the parameters, the query, the value and the key."""

    def heads(name, inputs):
        outputs = inputs @ params[name] + params.get(f"{name}_bias", 0.0)
        return np.split(outputs, num_heads, axis=1)

    queries, keys, values = heads("query", query), heads("key", key), heads("value", value)
    outputs = [
        forward.attention(q, k, v, mask)[0] for q, k, v in zip(queries, keys, values, strict=True)
    ]
    gradients, d_outputs = linear_backward(
        params, "output", np.concatenate(outputs, axis=1), upstream
    )
    d_heads = [
        attention_backward(*of_head, mask, d_head)
        for *of_head, d_head in zip(
            queries, keys, values, np.split(d_outputs, num_heads, axis=1), strict=True
        )
    ]
    d_inputs = {}
    for i, (name, inputs) in enumerate((("query", query), ("key", key), ("value", value))):
        d_projected = np.concatenate([d_head[i] for d_head in d_heads], axis=1)
        of_map, d_inputs[name] = linear_backward(params, name, inputs, d_projected)
        gradients |= of_map
    return gradients, d_inputs["query"], d_inputs["value"], d_inputs["key"]


def feed_forward_backward(params, inputs, upstream):
    """Of equation (2)."""
    before = inputs @ params["inner"] + params.get("inner_bias", 0.0)
    outer, d_hidden = linear_backward(params, "outer", forward.relu(before), upstream)
    inner, d_inputs = linear_backward(params, "inner", inputs, d_hidden * (before > 0))
    return inner | outer, d_inputs


def layer_norm_backward(params, inputs, upstream, epsilon=1e-6):
    """With n = (x - mean) / s: dx = (dn - mean(dn) - n mean(n dn)) / s, row by row."""
    gradients = {"scale": np.zeros(inputs.shape[1]), "shift": upstream.sum(axis=0)}
    d_inputs = np.zeros_like(inputs)
    for i, row in enumerate(inputs):
        deviation = math.sqrt(row.var() + epsilon)
        normal = (row - row.mean()) / deviation
        gradients["scale"] += upstream[i] * normal
        d_normal = upstream[i] * params["scale"]
        d_inputs[i] = (d_normal - d_normal.mean() - normal * (normal * d_normal).mean()) / deviation
    return gradients, d_inputs


def residual_backward(norm, inputs, sublayer, sublayer_backward, norm_params, upstream):
    """Returns the gradients of the sub-layer's parameters, of the norm's, and of the inputs.

    `sublayer_backward(states, upstream)` returns the first and the gradient of the states.
    """
    if norm == "post":
        total = inputs + sublayer(inputs)
        of_norm, d_total = layer_norm_backward(norm_params, total, upstream)
        of_sublayer, d_inputs = sublayer_backward(inputs, d_total)
        return of_sublayer, of_norm, d_total + d_inputs
    states = forward.layer_norm(norm_params, inputs)
    of_sublayer, d_states = sublayer_backward(states, upstream)
    of_norm, d_inputs = layer_norm_backward(norm_params, inputs, d_states)
    return of_sublayer, of_norm, upstream + d_inputs


class Sublayers:
    """The sub-layers of a block, in their order, each a forward and a backward function."""

    def __init__(self, params, num_heads, norm):
        self.params, self.num_heads, self.norm = params, num_heads, norm
        self.functions = {}

    def add_self_attention(self, name, mask):
        params = self.params[name]

        def attend(states):
            return forward.multi_head_attention(params, self.num_heads, states, states, mask=mask)[
                0
            ]

        def backward(states, upstream):
            gradients, *d_states = multi_head_attention_backward(
                params, self.num_heads, states, states, states, mask, upstream
            )
            return gradients, sum(d_states)

        self.functions[name] = attend, backward

    def add_cross_attention(self, name, memory, mask, d_memory):
        """The gradient of the memory is added to `d_memory`."""
        params = self.params[name]

        def attend(states):
            return forward.multi_head_attention(params, self.num_heads, states, memory, mask=mask)[
                0
            ]

        def backward(states, upstream):
            gradients, d_states, d_value, d_key = multi_head_attention_backward(
                params, self.num_heads, states, memory, memory, mask, upstream
            )
            d_memory[...] += d_value + d_key
            return gradients, d_states

        self.functions[name] = attend, backward

    def add_feed_forward(self):
        params = self.params["feed_forward"]
        self.functions["feed_forward"] = (
            lambda states: forward.feed_forward(params, states),
            lambda states, upstream: feed_forward_backward(params, states, upstream),
        )

    def backward(self, inputs, upstream):
        states = [inputs]
        for name, (function, _) in self.functions.items():
            norm_params = self.params[f"{name}_norm"]
            states.append(forward.residual(self.norm, states[-1], function, norm_params))
        gradients = {}
        for name, functions in reversed(self.functions.items()):
            states.pop()
            gradients[name], gradients[f"{name}_norm"], upstream = residual_backward(
                self.norm, states[-1], *functions, self.params[f"{name}_norm"], upstream
            )
        return gradients, upstream


def encoder_block_backward(
    params, num_heads, inputs, upstream, padding_mask=None, mask=None, norm="post"
):
    """Returns the gradients of the parameters and of the inputs."""
    sublayers = Sublayers(params, num_heads, norm)
    key_mask = forward.key_mask(len(inputs), padding_mask)
    sublayers.add_self_attention("attention", forward.both(mask, key_mask))
    sublayers.add_feed_forward()
    return sublayers.backward(inputs, upstream)


def decoder_block_backward(
    params,
    num_heads,
    inputs,
    upstream,
    memory=None,
    padding_mask=None,
    memory_mask=None,
    norm="post",
    mask=None,
    cross_mask=None,
):
    """Returns the gradients of the parameters, of the inputs and of the memory."""
    self_mask, source_mask = forward.decoder_masks(
        inputs, padding_mask, memory_mask, mask, cross_mask
    )
    sublayers = Sublayers(params, num_heads, norm)
    sublayers.add_self_attention("self_attention", self_mask)
    d_memory = None
    if memory is not None:
        d_memory = np.zeros_like(memory)
        sublayers.add_cross_attention("cross_attention", memory, source_mask, d_memory)
    sublayers.add_feed_forward()
    return *sublayers.backward(inputs, upstream), d_memory


def stack_backward(params, embedded, block, block_backward, norm, upstream):
    """Of `forward.encoder` and `forward.decoder`, given one block of theirs and its gradient.

    Returns the gradients of the parameters and of the embedded tokens.
    """
    states = [embedded + forward.positions_of(params, *embedded.shape)]
    for block_params in params["blocks"]:
        states.append(block(block_params, states[-1]))
    gradients = {"blocks": []}
    if norm == "pre":
        gradients["final_norm"], upstream = layer_norm_backward(
            params["final_norm"], states[-1], upstream
        )
    for block_params, inputs in zip(params["blocks"][::-1], states[-2::-1], strict=True):
        of_block, upstream = block_backward(block_params, inputs, upstream)
        gradients["blocks"].insert(0, of_block)
    if "positions" in params:
        gradients["positions"] = np.zeros_like(params["positions"])
        gradients["positions"][: len(embedded)] = upstream
    return gradients, upstream


def embed_backward(matrix, ids, upstream, padding_id=0):
    gradient = np.zeros_like(matrix)
    for i, row in zip(ids, upstream, strict=True):
        if i != padding_id:
            gradient[i] += row * math.sqrt(matrix.shape[1])
    return gradient


def transformer_backward(params, num_heads, source, target, upstream, norm="post"):
    """The gradients of all parameters, `upstream` being that of the logits of one pair.

    "source" and "target" have a gradient each; that of a shared matrix is their sum.
    """
    source, target = np.asarray(source), np.asarray(target)
    embedded = forward.embed(params["source"], source)
    memory = forward.encoder(params["encoder"], num_heads, embedded, source != 0, norm)
    embedded_target = forward.embed(params["target"], target)
    masks = {"padding_mask": target != 0, "memory_mask": source != 0, "norm": norm}
    states = forward.decoder(params["decoder"], num_heads, embedded_target, memory, **masks)
    d_memory = np.zeros_like(memory)

    def decoder_block_and_memory(block_params, inputs, upstream):
        gradients, d_inputs, d_memory_of_block = decoder_block_backward(
            block_params, num_heads, inputs, upstream, memory, **masks
        )
        d_memory[...] += d_memory_of_block
        return gradients, d_inputs

    of_decoder, d_target = stack_backward(
        params["decoder"],
        embedded_target,
        lambda p, x: forward.decoder_block(p, num_heads, x, memory, **masks),
        decoder_block_and_memory,
        norm,
        upstream @ params["target"],
    )
    of_encoder, d_source = stack_backward(
        params["encoder"],
        embedded,
        lambda p, x: forward.encoder_block(p, num_heads, x, source != 0, norm=norm),
        lambda p, x, up: encoder_block_backward(p, num_heads, x, up, source != 0, norm=norm),
        norm,
        d_memory,
    )
    return {
        "source": embed_backward(params["source"], source, d_source),
        "target": upstream.T @ states + embed_backward(params["target"], target, d_target),
        "encoder": of_encoder,
        "decoder": of_decoder,
    }
