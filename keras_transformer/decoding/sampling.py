"""Sampling from the model: temperature, top-k and nucleus."""

import dataclasses

import keras
from keras import ops

from keras_transformer.decoding.constraints.constraint import check_constraints
from keras_transformer.decoding.greedy import decode_rows
from keras_transformer.decoding.step import check_positive_int, checked_number
from keras_transformer.decoding.top_k import top_k

# In float32 a smaller number may count as 0, and logits divided by it as infinite.
_SMALLEST, _LARGEST = 1e-20, 1e20


@dataclasses.dataclass(frozen=True)
class Sampling:
    """Draws each token at random, `num_samples` independent times a sentence.

    Logits are divided by the temperature, then cut to the `top_k` best, then, renormalised, to the
    smallest set of best tokens whose probabilities sum to `top_p` or more (Holtzman et al., 2020),
    as in Hugging Face transformers. Equal probabilities: the lower id is kept first.

    The log-probabilities and scores returned are those of the model itself, before temperature and
    cuts. Samples come in the order drawn. The same seed gives the same samples on one backend
    (TensorFlow draws others under XLA); a row's random numbers depend on its place in the batch.

    Args:
        temperature: from 1e-20 to 1e20; 1 is the model's distribution.
        top_k: number of tokens kept, or None for all; more than the vocabulary is all.
        top_p: probability kept, from 1e-20 to 1, or None for all.
        num_samples: number of samples a sentence.
        seed: int in [0, 2**31).
        constraints: sequence of `Constraint`, applied in this order, before the temperature.

    Raises:
        ValueError: if an argument is outside of what is said above.

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

    def __post_init__(self):
        object.__setattr__(self, "constraints", check_constraints(self.constraints))
        temperature = checked_number("temperature", self.temperature, _SMALLEST, _LARGEST)
        object.__setattr__(self, "temperature", temperature)
        if self.top_k is not None:
            check_positive_int("top_k", self.top_k)
        if self.top_p is not None:
            object.__setattr__(self, "top_p", checked_number("top_p", self.top_p, _SMALLEST, 1))
        check_positive_int("num_samples", self.num_samples)
        is_int = isinstance(self.seed, int) and not isinstance(self.seed, bool)
        if not is_int or not 0 <= self.seed < 2**31:
            raise ValueError(
                f"`seed` must be an integer in [0, 2**31). Received: seed={self.seed!r}"
            )

    @property
    def width(self):
        """Rows of a sentence in the step's batch."""
        return self.num_samples

    def __call__(
        self,
        step,
        state,
        max_lengths,
        max_length,
        bos_id=2,
        eos_id=3,
        pad_id=0,
        seed=None,
        constraints=(),
        keep_sentences=None,
    ):
        """Samples; arguments as of `BeamSearch`, `step` being called with `rows=None`.

        Args:
            seed: int32 scalar that takes the place of the object's seed: a compiled search draws
                anew with each, without being compiled anew.
            keep_sentences: as of `BeamSearch`, but that sentences which leave change what the
                others draw.

        Returns:
            A `SearchResult` with n = `num_samples`.
        """
        seed = self.seed if seed is None else seed
        constraints = (*self.constraints, *check_constraints(constraints))

        def choose(logits, index, normalizer):
            largest = ops.max(logits, axis=-1, keepdims=True)  # [rows, 1]
            drawn_from = logits
            if constraints:
                # There must be something to draw from, even where everything is ruled out.
                drawn_from = ops.where(ops.equal(largest, float("-inf")), 0.0, logits)
            tokens = self._draw(drawn_from, _StepSeed(seed, index))  # [rows]
            chosen = ops.take_along_axis(logits, ops.expand_dims(tokens, -1), axis=-1)  # [rows, 1]
            return tokens, (chosen - normalizer(logits, largest))[:, 0]

        return decode_rows(
            step,
            state,
            choose,
            self.width,
            constraints,
            max_lengths,
            max_length,
            bos_id,
            eos_id,
            pad_id,
            keep_sentences,
        )

    def _draw(self, logits, seed):
        """Tokens int32 `[rows]` of logits `[rows, vocabulary]`."""
        vocabulary = logits.shape[-1]
        logits = logits / self.temperature
        if self.top_k is None and self.top_p is None:
            return keras.random.categorical(logits, 1, dtype="int32", seed=seed)[:, 0]
        kept, ids = top_k(logits, min(self.top_k or vocabulary, vocabulary))  # [rows, kept]
        if self.top_p is not None:
            probabilities = ops.softmax(kept, axis=-1)
            # What comes before a token decides: the one that crosses `top_p` is still kept.
            before = ops.cumsum(probabilities, axis=-1) - probabilities
            kept = ops.where(before < self.top_p, kept, float("-inf"))
        places = keras.random.categorical(kept, 1, dtype="int32", seed=seed)  # [rows, 1]
        return ops.take_along_axis(ids, places, axis=-1)[:, 0]


class _StepSeed(keras.random.SeedGenerator):
    """Seed of one step: a function of the search's seed and the step's number, no variable.

    `keras.random` takes an int or a `SeedGenerator`; this one hands over a tensor that may be
    traced, so that each turn of a compiled loop draws other numbers.
    """

    # torch adds the two halves of a seed: far apart, so that neighbouring seeds share no step.
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
