"""`TrainingRecipe`: the hyper-parameters of training and search."""

import dataclasses
import functools

from keras_transformer.settings.setting import (
    COUNT,
    NON_NEGATIVE,
    POSITIVE,
    RATE,
    Settings,
    choice,
    setting,
)

_training = functools.partial(setting, table="training")
_search = functools.partial(setting, table="search")


@dataclasses.dataclass(frozen=True)
class TrainingRecipe(Settings):
    """The hyper-parameters of training and search that belong to a model.

    The defaults describe the base model of the paper.

    Args:
        {settings}

    Raises:
        ValueError: If a value is not allowed.

    Example:

    >>> recipe = keras_transformer.models.TrainingRecipe(warmup_steps=8_000)
    >>> recipe.beta_1, recipe.beta_2, recipe.epsilon
    (0.9, 0.98, 1e-09)

    Reference: Vaswani et al. (2017), sections 5 and 6.1.
    """

    label_smoothing: float = _training(
        0.1, "probability spread over the other tokens, section 5.4", RATE, metavar="EPSILON"
    )
    r_drop: float = _training(
        0.0,
        "weight (alpha) of R-Drop: each step computes its batch twice, with different dropout, and "
        "brings the two distributions closer together; 5 in the translation experiments of its "
        "authors",
        NON_NEGATIVE,
        metavar="ALPHA",
    )
    peak_learning_rate: float | None = _training(
        None,
        "learning rate at the end of the warm-up, from which it falls with the square root of the "
        "step",
        POSITIVE,
        metavar="RATE",
        unset="the paper's, d_model^-0.5 * warmup_steps^-0.5",
    )
    warmup_steps: int = _training(4000, "number of steps of the linear warm-up, section 5.3", COUNT)
    beta_1: float = _training(0.9, "Adam's decay of the mean of gradients", RATE)
    beta_2: float = _training(0.98, "Adam's decay of the mean of squared gradients", RATE)
    epsilon: float = _training(1e-9, "Adam's epsilon", POSITIVE, metavar="EPSILON")
    clip_norm: float | None = _training(
        None,
        "global norm that gradients are clipped to",
        POSITIVE,
        metavar="NORM",
        unset="no clipping, as in the paper",
    )
    ema_momentum: float | None = _training(
        None,
        "momentum of an exponential moving average of the weights, such as 0.999; the average is "
        "one more candidate for the finished model, see `select_best`",
        RATE,
        unset="no moving average",
    )
    tokens_per_batch: int = _training(
        25_000, "number of tokens in a batch on each side, padding included, over all GPUs", COUNT
    )
    max_steps: int = setting(100_000, "number of training steps", COUNT)
    max_length: int = setting(
        256,
        "maximum length of a training sentence in tokens, its end included, on either side; longer "
        "pairs are left out",
        COUNT,
        table="data",
    )
    average_checkpoints: int = setting(
        5,
        "number of last checkpoints that are averaged at the end, section 6.1; see `select_best`",
        COUNT,
        table="checkpoints",
    )
    beam_size: int = _search(4, "number of beams of the search, section 6.1; 1 is greedy", COUNT)
    length_penalty: float = _search(
        0.6,
        "exponent (alpha) of the length penalty, section 6.1; a larger one gives longer answers, 0 "
        "switches it off",
        NON_NEGATIVE,
        metavar="ALPHA",
    )
    length_normalization: str = _search(
        "gnmt",
        "base of the length penalty: `gnmt` for the paper's (5 + length) / 6, `length` for the "
        "length itself",
        choice("KIND", "gnmt", "length"),
    )
