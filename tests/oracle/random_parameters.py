"""Random parameters of the oracle's Transformer, for the tests of the oracle itself."""

import numpy as np


class RandomParameters:
    """Draws trees of parameters, every leaf N(0, 1) over the root of its height.

    Args:
        seed: of the generator.
        d_model, inner, num_heads, key_dim, value_dim: the sizes.
        bias: whether the attention projections have biases.
        norm: "pre" adds a final norm to the stacks.
        positions: rows of a table of learned positions, or None for sinusoids.
    """

    def __init__(
        self,
        seed=0,
        d_model=6,
        inner=7,
        num_heads=2,
        key_dim=3,
        value_dim=2,
        bias=True,
        norm="post",
        positions=None,
    ):
        self.rng = np.random.default_rng(seed)
        self.d_model, self.inner, self.num_heads = d_model, inner, num_heads
        self.key_dim, self.value_dim = key_dim, value_dim
        self.bias, self.norm, self.num_positions = bias, norm, positions

    def array(self, *shape):
        return self.rng.normal(size=shape) / np.sqrt(shape[0] if len(shape) == 2 else 4)

    def map(self, name, inputs, outputs, bias):
        of_map = {name: self.array(inputs, outputs)}
        return of_map | ({f"{name}_bias": self.array(outputs)} if bias else {})

    def attention(self):
        keys, values = self.num_heads * self.key_dim, self.num_heads * self.value_dim
        return {
            **self.map("query", self.d_model, keys, self.bias),
            **self.map("key", self.d_model, keys, self.bias),
            **self.map("value", self.d_model, values, self.bias),
            **self.map("output", values, self.d_model, self.bias),
        }

    def feed_forward(self):
        return {
            **self.map("inner", self.d_model, self.inner, True),
            **self.map("outer", self.inner, self.d_model, True),
        }

    def layer_norm(self):
        return {"scale": 1 + self.array(self.d_model), "shift": self.array(self.d_model)}

    def block(self, *attentions):
        params = {name: self.attention() for name in attentions}
        params["feed_forward"] = self.feed_forward()
        return params | {f"{name}_norm": self.layer_norm() for name in params}

    def stack(self, *attentions, num_blocks=2):
        params = {"blocks": [self.block(*attentions) for _ in range(num_blocks)]}
        if self.norm == "pre":
            params["final_norm"] = self.layer_norm()
        if self.num_positions:
            params["positions"] = self.array(self.num_positions, self.d_model)
        return params

    def transformer(self, source_vocabulary, target_vocabulary):
        return {
            "source": self.array(source_vocabulary, self.d_model),
            "target": self.array(target_vocabulary, self.d_model),
            "encoder": self.stack("attention"),
            "decoder": self.stack("self_attention", "cross_attention"),
        }


def leaves(tree, path=""):
    """All (path, array) of a tree of dicts and lists, in the order of the sorted keys."""
    if isinstance(tree, np.ndarray):
        return [(path, tree)]
    items = sorted(tree.items()) if isinstance(tree, dict) else enumerate(tree)
    return [leaf for key, value in items for leaf in leaves(value, f"{path}/{key}")]
