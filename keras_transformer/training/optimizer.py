"""The paper's optimiser, and `compile` with the loss and optimiser of a recipe."""

import keras

from keras_transformer.layers.dtypes import at_least_float32
from keras_transformer.training.adam import FusedAdam, GlobalClipAdam
from keras_transformer.training.distribution import model_scope, num_replicas
from keras_transformer.training.label_smoothing import LabelSmoothedCrossEntropy
from keras_transformer.training.loss_model import LossModel
from keras_transformer.training.schedule import TransformerSchedule


def make_optimizer(recipe, d_model: int) -> keras.optimizers.Optimizer:
    """Builds Adam with the schedule of a recipe.

    Args:
        recipe: `TrainingRecipe`.
        d_model: int, width of the model.

    Returns:
        `FusedAdam`, or `GlobalClipAdam` if the recipe clips.

    Example:

    >>> from keras_transformer.models import TrainingRecipe
    >>> from keras_transformer.training import make_optimizer
    >>> make_optimizer(TrainingRecipe(), d_model=512).epsilon
    1e-09

    Source: Vaswani et al. (2017), section 5.3.
    """
    if recipe.peak_learning_rate is None:
        schedule = TransformerSchedule(d_model, recipe.warmup_steps)
    else:
        schedule = TransformerSchedule.with_peak(
            recipe.peak_learning_rate, d_model, recipe.warmup_steps
        )
    settings = {"beta_1": recipe.beta_1, "beta_2": recipe.beta_2, "epsilon": recipe.epsilon}
    if recipe.clip_norm is None:
        return FusedAdam(schedule, **settings)
    return GlobalClipAdam(schedule, clip_norm=recipe.clip_norm, **settings)


def compile_model(model, recipe, metrics=(), jit_compile=False, **kwargs):
    """Compiles a Transformer with the loss and the optimiser of its recipe.

    Metrics on logits cost two more passes over [tokens, vocabulary] a step, which shows on a CPU;
    `evaluate_tokens` gives the same figures on a validation set.

    Args:
        model: `Transformer` or `LossModel`.
        recipe: `TrainingRecipe`.
        metrics: weighted metrics, e.g. `[TokenLoss(), TokenAccuracy()]`.
        jit_compile: bool, XLA. It compiles anew for every batch shape. On JAX a step is always
            compiled: it would run operation by operation otherwise.
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
    loss = None  # That of a `LossModel` is in the model.
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
        # A first step that makes variables would be traced twice, which takes seconds.
        with model_scope(model):
            model.optimizer.build(model.trainable_variables)
    return model
