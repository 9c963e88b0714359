"""The paper's learning rate and optimizer, and `compile` with the loss of a recipe."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_transformer.layers.checks import check_positive_number
from keras_transformer.layers.dtypes import Tensor, at_least_float32
from keras_transformer.settings.training_recipe import TrainingRecipe
from keras_transformer.training.adam import FusedAdam, GlobalClipAdam
from keras_transformer.training.distribution import model_scope, num_replicas
from keras_transformer.training.loss_model import LabelSmoothedCrossEntropy, LossModel


@keras.saving.register_keras_serializable(package="keras_transformer")
class TransformerSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """The paper's schedule, `scale * d_model^-0.5 * min(s^-0.5, s * warmup_steps^-1.5)`.

    Keras calls a schedule with 0 for the first step, which is `s = 1` in the formula: its learning
    rate is above zero, and the peak is at `s = warmup_steps`.

    Args:
        d_model: int, width of the model.
        warmup_steps: int, steps until the peak.
        scale: float, multiplies the rate. `TransformerSchedule.with_peak` computes it.

    Call arguments:
        step: int scalar, number of updates done so far.

    Returns:
        float32 scalar.

    Raises:
        ValueError: if `d_model`, `warmup_steps` or `scale` is not positive.

    Example:

    >>> from keras_transformer.training import TransformerSchedule
    >>> schedule = TransformerSchedule(512)
    >>> f"{float(schedule(3999)):.3e}"
    '6.988e-04'

    Reference: Vaswani et al. (2017), equation 3.
    """

    def __init__(self, d_model: int, warmup_steps: int = 4000, scale: float = 1.0):
        super().__init__()
        values = {"d_model": d_model, "warmup_steps": warmup_steps, "scale": scale}
        for name, value in values.items():
            check_positive_number(name, value)
        self.d_model = d_model
        self.warmup_steps = warmup_steps
        self.scale = scale

    @classmethod
    def with_peak(
        cls, peak_learning_rate: float, d_model: int, warmup_steps: int = 4000
    ) -> "TransformerSchedule":
        """Returns the schedule that reaches `peak_learning_rate` after the warm-up.

        Args:
            peak_learning_rate: float.
            d_model, warmup_steps: as in `TransformerSchedule`.
        """
        check_positive_number("peak_learning_rate", peak_learning_rate)
        scale = peak_learning_rate * d_model**0.5 * warmup_steps**0.5
        return cls(d_model, warmup_steps, scale)

    def __call__(self, step: Tensor) -> Tensor:
        number = ops.cast(step, "float32") + 1.0
        rate = ops.minimum(number**-0.5, number * float(self.warmup_steps) ** -1.5)
        return self.scale * float(self.d_model) ** -0.5 * rate

    def get_config(self) -> dict:
        names = "d_model", "warmup_steps", "scale"
        return {name: getattr(self, name) for name in names}


def make_optimizer(recipe: TrainingRecipe, d_model: int) -> keras.optimizers.Optimizer:
    """Returns Adam with the schedule of a recipe, a `GlobalClipAdam` if the recipe clips.

    If the recipe has an `ema_momentum`, `fit` ends with the moving average as the weights, as with
    Keras' `use_ema`.

    Args:
        recipe: `TrainingRecipe`.
        d_model: int, width of the model.

    Example:

    >>> from keras_transformer.models import TrainingRecipe
    >>> from keras_transformer.training import make_optimizer
    >>> make_optimizer(TrainingRecipe(), d_model=512).epsilon
    1e-09

    Reference: Vaswani et al. (2017), section 5.3.
    """
    peak, size = recipe.peak_learning_rate, (d_model, recipe.warmup_steps)
    if peak is None:
        schedule = TransformerSchedule(*size)
    else:
        schedule = TransformerSchedule.with_peak(peak, *size)
    settings = {"beta_1": recipe.beta_1, "beta_2": recipe.beta_2, "epsilon": recipe.epsilon}
    if recipe.ema_momentum is not None:
        settings |= {"use_ema": True, "ema_momentum": recipe.ema_momentum}
    if recipe.clip_norm is None:
        return FusedAdam(schedule, **settings)
    return GlobalClipAdam(schedule, clip_norm=recipe.clip_norm, **settings)


def compile_model(
    model: keras.Model,
    recipe: TrainingRecipe,
    metrics: Sequence = (),
    jit_compile: bool = False,
    **kwargs: Any,
) -> keras.Model:
    """Compiles a Transformer with the loss and the optimizer of its recipe.

    Metrics on logits cost two more passes over [tokens, vocabulary] a step, which takes time on a
    CPU; `evaluate_tokens` gives the same figures on a validation set.

    Args:
        model: `Transformer` or `LossModel`.
        recipe: `TrainingRecipe`.
        metrics: weighted metrics, e.g. `[TokenLoss(), TokenAccuracy()]`.
        jit_compile: bool, whether to compile with XLA, once for every batch shape. On JAX a step is
            always compiled, because its operations would otherwise run one by one.
        **kwargs: further arguments of `keras.Model.compile`.

    Returns:
        `model`, compiled.

    Raises:
        ValueError: if `jit_compile` is true with more than one replica.

    Example:

    >>> from keras_transformer.models import TrainingRecipe, Transformer
    >>> from keras_transformer.training import compile_model
    >>> model = Transformer.from_preset("tiny", vocab_size=100)
    >>> compile_model(model, TrainingRecipe()).loss.label_smoothing
    0.1
    """
    replicas = num_replicas(model)
    if jit_compile and replicas > 1:
        raise ValueError(
            "`jit_compile=True` does not work with more than one replica: TensorFlow cannot "
            "compile the exchange of gradients with XLA. Use jit_compile=False. "
            f"Received: jit_compile={jit_compile!r} with {replicas} replicas"
        )
    loss = None  # a `LossModel` has its own
    if not isinstance(model, LossModel):
        dtype = at_least_float32(model.compute_dtype)
        loss = LabelSmoothedCrossEntropy(recipe.label_smoothing, dtype=dtype)
    model.compile(
        optimizer=make_optimizer(recipe, model.config.d_model),
        loss=loss,
        weighted_metrics=list(metrics) or None,
        jit_compile=bool(jit_compile) or keras.backend.backend() == "jax",
        **kwargs,
    )
    if model.built:
        # If the first step created these variables, it would be traced twice, which takes seconds.
        with model_scope(model):
            model.optimizer.build(model.trainable_variables)
    return model
