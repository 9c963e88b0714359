"""What is compared with the other libraries: shapes, masks, norms, activations and dtypes."""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Case:
    """One comparison; `generator` draws its weights, inputs and masks."""

    batch: int = 2
    length: int = 5
    source_length: int = 4
    num_heads: int = 2
    key_dim: int = 4
    intermediate_dim: int = 9
    num_layers: int = 2
    norm: str = "post"
    activation: str = "relu"
    epsilon: float = 1e-5
    masks: frozenset = frozenset()  # of "padding", "causal", "arbitrary"
    dtype: str = "float32"
    seed: int = 0

    @property
    def d_model(self):
        return self.num_heads * self.key_dim

    def generator(self):
        return np.random.default_rng(self.seed)

    def states(self, rng, length):
        return rng.normal(size=(self.batch, length, self.d_model)).astype(self.dtype)

    def padding_mask(self, rng, length):
        """`[batch, length]`, True = a real position; every row keeps its first."""
        if "padding" not in self.masks:
            return None
        return np.arange(length) < rng.integers(1, length + 1, (self.batch, 1))

    def attention_mask(self, rng, length, source_length, is_causal=False):
        """`[batch, length, source_length]`, True = attend; every query may see the first key."""
        mask = np.ones((self.batch, length, source_length), bool)
        if "arbitrary" in self.masks:
            mask &= rng.random(mask.shape) < 0.6
            mask[..., 0] = True
        if is_causal:
            mask &= np.tri(length, source_length, dtype=bool)
        return None if mask.all() else mask


def with_gelu(dtype, *others):
    """GELU and others; without it in float64, where TensorFlow's still has sqrt(1/2) in float32."""
    return (*others, "gelu") if dtype == "float32" else others


# Every kind of mask, and as many positions and heads as it takes to confuse two of them.
MASKED = {"batch": 3, "length": 7, "source_length": 5, "num_heads": 3}
MASKED["masks"] = frozenset(["padding", "causal", "arbitrary"])
