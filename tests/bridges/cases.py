"""What is compared with the other libraries: shapes, masks, norms, activations and dtypes."""

import dataclasses

import numpy as np
from hypothesis import Phase, settings
from hypothesis import strategies as st

# A failing case is small as it is: looking for a smaller one would take minutes.
SWEEP = settings(max_examples=3, derandomize=True, deadline=None, phases=[Phase.generate])


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


def cases(dtype="float32", activations=("relu",)):
    """Strategy of `Case`; the activations are these and GELU."""
    fields = {
        # Few sizes, since JAX compiles every operation for each.
        "batch": st.sampled_from([1, 3]),
        "length": st.sampled_from([1, 5]),
        "source_length": st.sampled_from([1, 4]),
        "num_heads": st.sampled_from([1, 2, 3]),
        # The layer norm of two or three channels has no direction left to compare.
        "key_dim": st.sampled_from([4, 6]),
        "intermediate_dim": st.sampled_from([4, 9]),
        "num_layers": st.integers(1, 2),
        "norm": st.sampled_from(["post", "pre"]),
        "activation": st.sampled_from(with_gelu(dtype, *activations)),
        "epsilon": st.sampled_from([1e-6, 1e-5, 1e-3]),
        "masks": st.frozensets(st.sampled_from(["padding", "causal", "arbitrary"])),
        "seed": st.integers(0, 1000),
        "dtype": st.just(dtype),
    }
    return st.builds(Case, **fields)
