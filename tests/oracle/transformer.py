"""The Transformer in NumPy float64, written from the paper (Vaswani et al., 2017) alone.

Nothing of the package is imported. Parameters are dicts of arrays. Loops over heads and positions
stand where the paper has a formula for one head or one position: slow, short, and plain to check.
Masks are boolean, True = may attend. Parameters may be complex, for `tests/oracle/slopes.py`.
"""

import math

import numpy as np


def softmax(row):
    exponentials = np.exp(row - row.max())
    return exponentials / exponentials.sum()


def attention(query, key, value, mask=None):
    """Equation (1) for one head: `[m, d_k]`, `[n, d_k]`, `[n, d_v]` -> (`[m, d_v]`, `[m, n]`)."""
    weights = np.zeros((len(query), len(key)), np.result_type(query, key, float))
    for i, q in enumerate(query):
        allowed = [j for j in range(len(key)) if mask is None or mask[i, j]]
        if allowed:  # A query that may attend to nothing gets zeros.
            scores = np.array([q @ key[j] / math.sqrt(len(q)) for j in allowed])
            weights[i, allowed] = softmax(scores)
    return weights @ value, weights


def attention_backward(query, key, value, mask, upstream):
    """The gradients of the inputs. A row of weights w of scores s: dw/ds = diag(w) - w w^T."""
    _, weights = attention(query, key, value, mask)
    d_weights = upstream @ value.T
    # Weights of masked keys are zero, and so are the gradients of their scores.
    d_scores = weights * (d_weights - (weights * d_weights).sum(axis=1, keepdims=True))
    d_scores = d_scores / math.sqrt(query.shape[1])
    return d_scores @ key, d_scores.T @ query, weights.T @ upstream


def multi_head_attention(params, num_heads, query, value, key=None, mask=None):
    """Section 3.2.2 for one sentence. Params: "query", "key", "value", "output" matrices, whose
    columns (rows of "output") belong to head 1, head 2, ...; optional "query_bias" etc.

    Returns `[m, d_model]` and the weights `[heads, m, n]`.
    """

    def linear(name, inputs):
        return inputs @ params[name] + params.get(f"{name}_bias", 0.0)

    queries = np.split(linear("query", query), num_heads, axis=1)
    keys = np.split(linear("key", value if key is None else key), num_heads, axis=1)
    values = np.split(linear("value", value), num_heads, axis=1)
    heads = [attention(q, k, v, mask) for q, k, v in zip(queries, keys, values, strict=True)]
    concatenated = np.concatenate([outputs for outputs, _ in heads], axis=1)
    return linear("output", concatenated), np.stack([weights for _, weights in heads])


def relu(inputs):
    return np.maximum(0.0, inputs)


def feed_forward(params, inputs, activation=relu):
    """Equation (2)."""
    hidden = activation(inputs @ params["inner"] + params.get("inner_bias", 0.0))
    return hidden @ params["outer"] + params.get("outer_bias", 0.0)


def layer_norm(params, inputs, epsilon=1e-6):
    """Ba et al. (2016): each position by its own mean and (biased) variance."""
    deviations = inputs - inputs.mean(axis=1, keepdims=True)
    variances = (deviations**2).mean(axis=1, keepdims=True)
    return deviations / np.sqrt(variances + epsilon) * params["scale"] + params["shift"]


def sinusoid(positions, d_model):
    """Section 3.5."""
    encoding = np.zeros((len(positions), d_model))
    for row, position in enumerate(positions):
        for i in range(d_model // 2):
            angle = position / 10_000 ** (2 * i / d_model)
            encoding[row, 2 * i] = math.sin(angle)
            encoding[row, 2 * i + 1] = math.cos(angle)
    return encoding


def residual(norm, inputs, sublayer, norm_params):
    if norm == "post":  # Section 3.1: LayerNorm(x + Sublayer(x))
        return layer_norm(norm_params, inputs + sublayer(inputs))
    return inputs + sublayer(layer_norm(norm_params, inputs))


def causal_mask(length):
    """Section 3.2.3: position i sees positions up to i."""
    return np.array([[j <= i for j in range(length)] for i in range(length)])


def key_mask(num_queries, padding_mask):
    return None if padding_mask is None else np.tile(padding_mask, (num_queries, 1))


def both(mask, other):
    if mask is None or other is None:
        return other if mask is None else mask
    return mask & other


def feed_forward_residual(norm, params, inputs):
    def transform(states):
        return feed_forward(params["feed_forward"], states)

    return residual(norm, inputs, transform, params["feed_forward_norm"])


def encoder_block(params, num_heads, inputs, padding_mask=None, mask=None, norm="post"):
    """Section 3.1, one sentence `[n, d_model]`."""
    mask = both(mask, key_mask(len(inputs), padding_mask))

    def attend(states):
        return multi_head_attention(params["attention"], num_heads, states, states, mask=mask)[0]

    outputs = residual(norm, inputs, attend, params["attention_norm"])
    return feed_forward_residual(norm, params, outputs)


def decoder_block(
    params, num_heads, inputs, memory=None, padding_mask=None, memory_mask=None, norm="post",
    mask=None, cross_mask=None,
):  # fmt: skip
    """`mask` comes on top of the causal one, `cross_mask` on top of the memory's padding."""
    mask = both(both(causal_mask(len(inputs)), key_mask(len(inputs), padding_mask)), mask)
    cross_mask = both(key_mask(len(inputs), memory_mask), cross_mask)

    def attend(states):
        attention = params["self_attention"]
        return multi_head_attention(attention, num_heads, states, states, mask=mask)[0]

    def attend_to_memory(states):
        attention = params["cross_attention"]
        return multi_head_attention(attention, num_heads, states, memory, mask=cross_mask)[0]

    outputs = residual(norm, inputs, attend, params["self_attention_norm"])
    if memory is not None:
        outputs = residual(norm, outputs, attend_to_memory, params["cross_attention_norm"])
    return feed_forward_residual(norm, params, outputs)


def stack(params, embedded, block, norm):
    """Positions, learned (Table 3, row E) or sinusoids; blocks; and a last norm after pre-norm."""
    length, d_model = embedded.shape
    learned = "positions" in params
    positions = params["positions"][:length] if learned else sinusoid(range(length), d_model)
    outputs = embedded + positions
    if "embedding_norm" in params:  # mBART's
        outputs = layer_norm(params["embedding_norm"], outputs)
    for block_params in params["blocks"]:
        outputs = block(block_params, outputs)
    return layer_norm(params["final_norm"], outputs) if norm == "pre" else outputs


def encoder(params, num_heads, embedded, padding_mask=None, norm="post"):
    def block(block_params, states):
        return encoder_block(block_params, num_heads, states, padding_mask, norm=norm)

    return stack(params, embedded, block, norm)


def decoder(
    params, num_heads, embedded, memory=None, padding_mask=None, memory_mask=None, norm="post"
):
    def block(block_params, states):
        return decoder_block(
            block_params, num_heads, states, memory, padding_mask, memory_mask, norm
        )

    return stack(params, embedded, block, norm)


def embed(matrix, ids, padding_id=0):
    """Section 3.4: the weights multiplied by sqrt(d_model); padding is nothing."""
    vectors = [0.0 * matrix[i] if i == padding_id else matrix[i] for i in ids]
    return np.array(vectors) * math.sqrt(matrix.shape[1])


def transformer(params, num_heads, source, target, norm="post"):
    """Logits `[target_length, vocabulary]` of one sentence pair of ids."""
    source, target = np.asarray(source), np.asarray(target)
    embedded, embedded_target = embed(params["source"], source), embed(params["target"], target)
    memory = encoder(params["encoder"], num_heads, embedded, source != 0, norm)
    masks = {"padding_mask": target != 0, "memory_mask": source != 0}
    states = decoder(params["decoder"], num_heads, embedded_target, memory, **masks, norm=norm)
    return states @ params["target"].T + params.get("output_bias", 0.0)
