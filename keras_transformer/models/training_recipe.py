"""How a preset is trained: the settings of section 5, and those of decoding."""

import dataclasses

from keras_transformer.layers.checks import check_choice, check_positive_integer, is_number
from keras_transformer.models.frozen_settings import FrozenSettings


@dataclasses.dataclass(frozen=True)
class TrainingRecipe(FrozenSettings):
    """The training settings that belong to a model; the defaults are those of the base model.

    Args:
        label_smoothing: Probability that is spread over the other tokens, section 5.4.
        peak_learning_rate: Learning rate at the end of the warm-up; None for the paper's,
            d_model^-0.5 * warmup_steps^-0.5.
        warmup_steps: Steps of linear warm-up, section 5.3.
        beta_1: Adam's decay of the mean of gradients.
        beta_2: Adam's decay of the mean of squared gradients.
        epsilon: Adam's epsilon.
        clip_norm: Global norm that gradients are clipped to; None, as in the paper, for none.
        tokens_per_batch: Tokens a step on each side, padding counted, over all replicas.
        max_steps: Training steps.
        max_length: Longest training sentence in tokens, either side.
        average_checkpoints: Number of last checkpoints whose weights are averaged, section 6.1.
        beam_size: Beams of the search, section 6.1.
        length_penalty: Alpha of the search, section 6.1.
        length_normalization: What alpha is the power of: `"gnmt"` for the paper's
            (5 + length) / 6, or `"length"` for the length itself.

    Raises:
        ValueError: If a value is not allowed.

    Example:

    >>> recipe = keras_transformer.models.TrainingRecipe(warmup_steps=8_000)
    >>> recipe.beta_1, recipe.beta_2, recipe.epsilon
    (0.9, 0.98, 1e-09)

    Reference: Vaswani et al. (2017), sections 5 and 6.1.
    """

    label_smoothing: float = 0.1
    peak_learning_rate: float | None = None
    warmup_steps: int = 4000
    beta_1: float = 0.9
    beta_2: float = 0.98
    epsilon: float = 1e-9
    clip_norm: float | None = None
    tokens_per_batch: int = 25_000
    max_steps: int = 100_000
    max_length: int = 256
    average_checkpoints: int = 5
    beam_size: int = 4
    length_penalty: float = 0.6
    length_normalization: str = "gnmt"

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.type is int:
                check_positive_integer(field.name, value)
            elif field.type is not str and (value is not None or field.type is float):
                self._check(field.name, is_number(value), "a number")
        for name in ("label_smoothing", "beta_1", "beta_2"):
            self._check(name, 0 <= getattr(self, name) < 1, "at least 0 and less than 1")
        for name in ("peak_learning_rate", "clip_norm"):
            value = getattr(self, name)
            self._check(name, value is None or value > 0, "greater than 0, or None")
        self._check("epsilon", self.epsilon > 0, "greater than 0")
        self._check("length_penalty", self.length_penalty >= 0, "at least 0")
        check_choice("length_normalization", self.length_normalization, ("gnmt", "length"))

    def _check(self, name, is_allowed, rule):
        if not is_allowed:
            raise ValueError(f"`{name}` must be {rule}. Received: {name}={getattr(self, name)!r}")
