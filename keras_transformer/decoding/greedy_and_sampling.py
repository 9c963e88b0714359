"""Greedy search and sampling, whose hypotheses do not depend on each other, and their loop."""

from typing import Annotated, Any, ClassVar, NamedTuple

import keras
from annotated_types import Ge, Le
from keras import ops

from keras_transformer.decoding.constraints import Constraints, check_static_vocabulary
from keras_transformer.decoding.loop import extend_until_done, keep_shapes, top_k
from keras_transformer.decoding.search import Search, SearchResult
from keras_transformer.settings.base import Allowed, Size, settings_dataclass

# In float32 a smaller number may count as 0, and logits divided by it as infinite.
_SMALLEST, _LARGEST = 1e-20, 1e20
_Seed = Annotated[int, Ge(0), Le(2**31 - 1), Allowed("an integer in [0, 2**31)")]


@settings_dataclass
class GreedySearch(Search, name="greedy"):
    """Takes the most probable token at each step, until EOS or the sentence's maximum length.

    Ties go to the lower id. The score is the log-probability. `BeamSearch(beam_size=1)` finds the
    same tokens, with a normalized score.

    Args:
        constraints: Sequence of `Constraint`, applied in this order.

    Example:

    >>> following = ops.array([0, 0, 4, 0, 3])  # BOS 2 is followed by 4, 4 by EOS 3
    >>> step = lambda tokens, parents, state: (ops.one_hot(ops.take(following, tokens), 5), state)
    >>> search = keras_transformer.decoding.GreedySearch()
    >>> ops.convert_to_numpy(search(step, (), max_lengths=[4], max_length=4).tokens).tolist()
    [[[4, 3, 0, 0]]]
    """

    constraints: Constraints = ()

    def _search(self, inputs):
        def choose(logits, _):
            largest, tokens = top_k(logits, 1)
            return tokens[:, 0], (largest - inputs.normalizer(logits, largest, tokens))[:, 0]

        return _extend_independently(inputs, choose, self.width)


@settings_dataclass
class Sampling(Search, name="sampling"):
    """Draws each token at random, `num_samples` independent times for each sentence.

    Logits are divided by the temperature and cut to the `top_k` best tokens, then renormalized and
    cut to the smallest set of best tokens whose probabilities sum to `top_p` or more (Holtzman et
    al., 2020), as in Hugging Face transformers. Among equal probabilities the lower id comes first.

    The log-probabilities and scores are the model's own, before temperature and cuts. The same seed
    gives the same samples on one backend (TensorFlow draws others under XLA); the
    random numbers of a hypothesis depend on its index in the batch, which changes when finished
    sentences leave it.

    Args:
        temperature: From 1e-20 to 1e20; 1 is the model's distribution.
        top_k: Number of tokens kept; None for all.
        top_p: Probability kept, from 1e-20 to 1; None for all.
        num_samples: Number of samples of each sentence.
        seed: Int in [0, 2**31).
        constraints: Sequence of `Constraint`, applied in this order, before the temperature.

    Example:

    >>> step = lambda tokens, parents, state: (ops.array([[0.0, 0, 0, 9]] * 2), state)  # EOS is 3
    >>> search = keras_transformer.decoding.Sampling(top_k=1, num_samples=2)
    >>> ops.convert_to_numpy(search(step, (), max_lengths=[4], max_length=4).lengths).tolist()
    [[1, 1]]
    """

    temperature: Annotated[float, Ge(_SMALLEST), Le(_LARGEST)] = 1.0
    top_k: Size | None = None
    top_p: Annotated[float, Ge(_SMALLEST), Le(1)] | None = None
    num_samples: Size = 1
    seed: _Seed = 0
    constraints: Constraints = ()
    is_random: ClassVar[bool] = True

    @property
    def width(self) -> int:
        return self.num_samples

    def _search(self, inputs):
        seed = self.seed if inputs.seed is None else inputs.seed

        def choose(logits, index):
            largest = ops.max(logits, axis=-1, keepdims=True)  # [hypotheses, 1]
            drawn_from = logits
            if inputs.constraints:
                # There must be something to draw from, even where everything is ruled out.
                drawn_from = ops.where(ops.equal(largest, float("-inf")), 0.0, logits)
            tokens = self._draw(drawn_from, _StepSeed(seed, index))  # [hypotheses]
            chosen = ops.take_along_axis(logits, ops.expand_dims(tokens, -1), axis=-1)
            return tokens, (chosen - inputs.normalizer(logits, largest))[:, 0]

        return _extend_independently(inputs, choose, self.width)

    def _draw(self, logits, seed):
        """Returns tokens, int32 `[hypotheses]`, drawn from logits `[hypotheses, vocabulary]`."""
        check_static_vocabulary(logits)
        vocabulary = logits.shape[-1]
        logits = logits / self.temperature
        if self.top_k is None and self.top_p is None:
            return keras.random.categorical(logits, 1, dtype="int32", seed=seed)[:, 0]
        kept, ids = top_k(logits, min(self.top_k or vocabulary, vocabulary))  # [hypotheses, kept]
        if self.top_p is not None:
            probabilities = ops.softmax(kept, axis=-1)
            # The sum before a token decides, so that the token that crosses `top_p` is kept.
            before = ops.cumsum(probabilities, axis=-1) - probabilities
            kept = ops.where(before < self.top_p, kept, float("-inf"))
        ranks = keras.random.categorical(kept, 1, dtype="int32", seed=seed)  # [hypotheses, 1]
        return ops.take_along_axis(ids, ranks, axis=-1)[:, 0]


class _StepSeed(keras.random.SeedGenerator):
    """Seed of one step, a tensor, so that a compiled loop draws other numbers at each step."""

    # torch adds the two halves of a seed. The large stride keeps neighboring seeds apart.
    _STRIDE = 65_537

    def __init__(self, seed, index):
        # The base class would make a variable, which a traced loop body must not.
        self._halves = (seed, index)

    def next(self, ordered=True):
        del ordered
        seed, index = (ops.cast(half, "int32") for half in self._halves)
        halves = ops.stack([seed, index * self._STRIDE])
        # 32 bits; unsigned where JAX makes a key of them.
        return ops.cast(halves, "uint32" if keras.config.backend() == "jax" else "int32")


class _Hypotheses(NamedTuple):
    """State of a search whose hypotheses do not depend on each other."""

    index: Any  # int32 []: tokens generated so far
    limits: Any  # int32 [batch, 1]: the sentence's maximum length
    is_done: Any  # bool [batch, width]: it has its EOS, or its maximum length
    last_tokens: Any  # int32 [batch, width]: next input of the step
    tokens: Any  # int32 [batch, width, max_length]: padding from `lengths` on
    log_probabilities: Any  # float [batch, width]: sum over the tokens so far
    lengths: Any  # int32 [batch, width]


def _extend_independently(inputs, choose, width):
    """Extends each hypothesis, `width` per sentence, by one chosen token per step until it is done.

    `choose(logits, index) -> (tokens, log_probabilities)` takes the logits of all hypotheses, float
    `[batch * width, vocabulary]`, and the int32 number of the step; it returns int32 and float
    `[batch * width]`.
    """
    max_length, pad_id = inputs.max_length, inputs.pad_id

    def extend(old, model_state):
        # [batch, width] -> [batch * width]
        last_tokens = ops.reshape(old.last_tokens, (-1,))
        logits, model_state = inputs.call_step(last_tokens, None, model_state)
        choice = choose(logits, old.index)
        # [batch * width] -> [batch, width]
        chosen, log_probabilities = (ops.reshape(values, (-1, width)) for values in choice)
        chosen = ops.where(old.is_done, pad_id, ops.cast(chosen, "int32"))
        is_next = ops.equal(ops.arange(max_length, dtype="int32"), old.index)  # [max_length]
        length = old.index + 1
        is_last = ops.logical_or(ops.equal(chosen, inputs.eos_id), length >= old.limits)
        total = old.log_probabilities
        new = old._replace(
            index=length,
            is_done=ops.logical_or(old.is_done, is_last),
            last_tokens=chosen,
            tokens=ops.where(is_next, ops.expand_dims(chosen, -1), old.tokens),
            log_probabilities=ops.where(old.is_done, total, total + log_probabilities),
            lengths=ops.where(old.is_done, old.lengths, length),
        )
        if inputs.constraints:
            # Hypotheses that no token could extend become empty, see `SearchResult`.
            is_dead = ops.equal(new.log_probabilities, float("-inf"))
            new = new._replace(
                is_done=ops.logical_or(new.is_done, is_dead),
                tokens=ops.where(ops.expand_dims(is_dead, -1), pad_id, new.tokens),
                lengths=ops.where(is_dead, 0, new.lengths),
            )
        return keep_shapes(new, old), model_state

    shape = (ops.shape(inputs.limits)[0], width)
    limits = ops.expand_dims(inputs.limits, 1)
    start = _Hypotheses(
        index=ops.convert_to_tensor(0, dtype="int32"),
        limits=limits,
        is_done=ops.broadcast_to(limits < 1, shape),
        last_tokens=ops.full(shape, inputs.bos_id, dtype="int32"),
        tokens=ops.full((*shape, max_length), pad_id, dtype="int32"),
        log_probabilities=ops.zeros(shape, dtype=inputs.dtype),
        lengths=ops.zeros(shape, dtype="int32"),
    )
    answers = extend_until_done(extend, start, inputs.state, inputs.keep_sentences)
    scores = answers.log_probabilities
    return SearchResult(answers.tokens, scores, scores, answers.lengths)
