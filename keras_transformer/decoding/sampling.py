"""Sampling from the model: temperature, top-k and nucleus."""

import copy
import dataclasses
from typing import Any

import keras
from keras import ops

from keras_transformer.decoding.greedy import decode_rows
from keras_transformer.decoding.search import Search, SearchResult
from keras_transformer.decoding.step import Step
from keras_transformer.decoding.top_k import top_k
from keras_transformer.layers.checks import check_positive_integer, checked_number
from keras_transformer.layers.dtypes import Tensor

# In float32 a smaller number may count as 0, and logits divided by it as infinite.
_SMALLEST, _LARGEST = 1e-20, 1e20


@dataclasses.dataclass(frozen=True)
class Sampling(Search, name="sampling"):
    """Draws each token at random, `num_samples` independent times for each sentence.

    Logits are divided by the temperature, then cut to the `top_k` best, then, renormalised, to the
    smallest set of best tokens whose probabilities sum to `top_p` or more (Holtzman et al., 2020),
    as in Hugging Face transformers. Among equal probabilities the lower id is kept first.

    The log-probabilities and scores returned are the model's own, before temperature and cuts.
    Samples come in the order drawn. The same seed gives the same samples on one backend (TensorFlow
    draws others under XLA); a row's random numbers depend on its place in the batch.

    Args:
        temperature: From 1e-20 to 1e20; 1 is the model's distribution.
        top_k: Number of tokens kept; None for all.
        top_p: Probability kept, from 1e-20 to 1; None for all.
        num_samples: Number of samples of each sentence.
        seed: int in [0, 2**31).
        constraints: Sequence of `Constraint`, applied in this order, before the temperature.

    Example:

    >>> from keras_transformer.decoding import Sampling
    >>> table = ops.array([[0.0, 0, 0, 9, 0]] * 5)  # EOS 3 follows everything
    >>> step = lambda tokens, rows, state: (ops.take(table, tokens, axis=0), state)
    >>> search = Sampling(top_k=1, num_samples=2)
    >>> ops.convert_to_numpy(search(step, (), max_lengths=[4], max_length=4).lengths).tolist()
    [[1, 1]]
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    num_samples: int = 1
    seed: int = 0
    constraints: tuple = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        temperature = checked_number("temperature", self.temperature, _SMALLEST, _LARGEST)
        object.__setattr__(self, "temperature", temperature)
        if self.top_k is not None:
            check_positive_integer("top_k", self.top_k, 2**31 - 1)
        if self.top_p is not None:
            object.__setattr__(self, "top_p", checked_number("top_p", self.top_p, _SMALLEST, 1))
        check_positive_integer("num_samples", self.num_samples, 2**31 - 1)
        is_int = isinstance(self.seed, int) and not isinstance(self.seed, bool)
        if not is_int or not 0 <= self.seed < 2**31:
            raise ValueError(
                f"`seed` must be an integer in [0, 2**31). Received: seed={self.seed!r}"
            )

    @property
    def width(self) -> int:
        """Number of rows of a sentence in the step's batch."""
        return self.num_samples

    def __call__(
        self,
        step: Step,
        state: Any,
        max_lengths: Tensor,
        max_length: Any,
        seed: Tensor | None = None,
        **options: Any,
    ) -> SearchResult:
        """Draws samples; the other arguments are those of `BeamSearch`.

        Args:
            seed: int32 scalar that replaces the seed of the object: a search that is compiled once
                draws other samples with each.

        Returns:
            A `SearchResult` with n = `num_samples`.
        """
        search = self
        if seed is not None:
            search = copy.copy(self)
            object.__setattr__(search, "seed", seed)  # It may be a tensor.
        return super(Sampling, search).__call__(step, state, max_lengths, max_length, **options)

    def _search(self, inputs):
        def choose(logits, index, normalizer):
            largest = ops.max(logits, axis=-1, keepdims=True)  # [rows, 1]
            drawn_from = logits
            if inputs.is_constrained:
                # There must be something to draw from, even where everything is ruled out.
                drawn_from = ops.where(ops.equal(largest, float("-inf")), 0.0, logits)
            tokens = self._draw(drawn_from, _StepSeed(self.seed, index))  # [rows]
            chosen = ops.take_along_axis(logits, ops.expand_dims(tokens, -1), axis=-1)  # [rows, 1]
            return tokens, (chosen - normalizer(logits, largest))[:, 0]

        return decode_rows(inputs, choose, self.width)

    def _draw(self, logits, seed):
        """Returns tokens, int32 `[rows]`, drawn by logits `[rows, vocabulary]`."""
        vocabulary = logits.shape[-1]
        logits = logits / self.temperature
        if self.top_k is None and self.top_p is None:
            return keras.random.categorical(logits, 1, dtype="int32", seed=seed)[:, 0]
        kept, ids = top_k(logits, min(self.top_k or vocabulary, vocabulary))  # [rows, kept]
        if self.top_p is not None:
            probabilities = ops.softmax(kept, axis=-1)
            # The sum before a token decides: the one that crosses `top_p` is still kept.
            before = ops.cumsum(probabilities, axis=-1) - probabilities
            kept = ops.where(before < self.top_p, kept, float("-inf"))
        places = keras.random.categorical(kept, 1, dtype="int32", seed=seed)  # [rows, 1]
        return ops.take_along_axis(ids, places, axis=-1)[:, 0]


class _StepSeed(keras.random.SeedGenerator):
    """Seed of one step, a function of the search's seed and the step's number.

    `keras.random` takes an int or a `SeedGenerator`; this one passes a tensor that may be traced,
    so that each step of a compiled loop draws other numbers.
    """

    # torch adds the two halves of a seed. They are far apart, so that seeds next to each other
    # share no step.
    _STRIDE = 65_537

    def __init__(self, seed, index):
        # The base class would make a variable, which a traced loop body must not.
        self._halves = (seed, index)

    def next(self, ordered=True):
        del ordered
        seed, index = self._halves
        seed = ops.cast(seed, "int32")
        halves = ops.stack([seed, ops.cast(index, "int32") * self._STRIDE])
        # 32 bits; unsigned where JAX makes a key of them.
        return ops.cast(halves, "uint32" if keras.config.backend() == "jax" else "int32")
