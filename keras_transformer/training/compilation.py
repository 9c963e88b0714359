"""From a recipe to an optimizer, and to a compiled model."""

from collections.abc import Sequence
from typing import Any

import keras

from keras_transformer.layers.tensors import at_least_float32
from keras_transformer.losses import LabelSmoothedCrossEntropy, LossModel
from keras_transformer.models.micro_batches import num_replicas
from keras_transformer.settings.presets import TrainingRecipe
from keras_transformer.training.distribution import model_scope, registered_strategy
from keras_transformer.training.muon import Muon
from keras_transformer.training.optimizer import FusedAdam, GlobalClipAdam, TransformerSchedule


def make_optimizer(recipe: TrainingRecipe, d_model: int) -> keras.optimizers.Optimizer:
    """Returns the optimizer of a recipe with its schedule, a `GlobalClipAdam` if Adam clips.

    With an `ema_momentum`, `fit` ends with the moving average as the weights (Keras' `use_ema`).

    Args:
        recipe: `TrainingRecipe`.
        d_model: Width of the model.

    Example:

    >>> from keras_transformer.models import TrainingRecipe
    >>> keras_transformer.training.make_optimizer(TrainingRecipe(), d_model=512).epsilon
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
    if recipe.optimizer == "muon":
        return Muon(schedule, clip_norm=recipe.clip_norm, **settings)
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
    """Compiles a model with the optimizer of a recipe and, for a `Transformer`, the recipe's loss.

    A `LossModel` keeps its own loss. Without sample weights, loss and metrics are means over the
    tokens that are not padding. Metrics on logits cost two more passes over [tokens, vocabulary] a
    step, which takes time on a CPU; `evaluate_tokens` gives the same figures on a validation set.

    Args:
        model: `Transformer` or `LossModel`.
        recipe: `TrainingRecipe`.
        metrics: Weighted metrics, e.g. `[TokenLoss(), TokenAccuracy()]`.
        jit_compile: Whether to compile with XLA, once for every batch shape. On JAX a step is
            always compiled, because its operations would otherwise run one by one.
        **kwargs: Further arguments of `keras.Model.compile`.

    Returns:
        `model`, compiled.

    Raises:
        ValueError: If `jit_compile` is true or the policy is "mixed_float16" with more than one
            replica, or weights are float16.
        UserError: If this process has used a strategy of several other devices.

    Example:

    >>> model = keras_transformer.Transformer.from_preset("tiny", vocab_size=100)
    >>> recipe = keras_transformer.TrainingRecipe()
    >>> keras_transformer.training.compile_model(model, recipe).loss.label_smoothing
    0.1
    """
    replicas = num_replicas(model)
    if jit_compile and replicas > 1:
        raise ValueError(
            "`jit_compile=True` does not work with more than one replica: TensorFlow cannot "
            "compile the exchange of gradients with XLA. Use jit_compile=False. "
            f"Received: jit_compile={jit_compile!r} with {replicas} replicas"
        )
    if replicas > 1 and model.dtype_policy.name == "mixed_float16":
        rule = '"mixed_float16" does not work with more than one replica: Keras looks for '
        rule += 'overflows on the first alone. Use "mixed_bfloat16" or "float32"'
        raise ValueError(f"{rule}. Received: {replicas} replicas")
    if replicas > 1:
        registered_strategy(model.distribute_strategy)
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
