"""The paper's loss, a model whose output is the loss of every token, and `compile_model`."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_transformer.checks import check_boolean, check_choice, checked_number
from keras_transformer.layers.tensors import Tensor, at_least_float32
from keras_transformer.models.cross_entropy import (
    ProjectedCrossEntropy,
    cross_entropy,
    fused_cross_entropy,
    uniform_share,
)
from keras_transformer.models.micro_batches import MicroBatchModel, num_replicas, token_mean_weights
from keras_transformer.settings.presets import TrainingRecipe
from keras_transformer.training.distribution import model_scope, registered_strategy
from keras_transformer.training.optimizer import make_optimizer

CONVENTIONS = ("t2t", "keras")


@keras.saving.register_keras_serializable(package="keras_transformer")
class LabelSmoothedCrossEntropy(keras.losses.Loss):
    """Cross-entropy of integer labels against a smoothed target, from logits.

    With `e` the smoothing and `V` the number of ids, the target is a distribution:

    - `convention="t2t"`: `1 - e` on the label and `e / (V - 1)` on every other id, padding
      included, as in tensor2tensor, the paper's own code (the default);
    - `convention="keras"`: `1 - e + e / V` on the label and `e / V` on the others, as in
      `keras.losses.CategoricalCrossentropy` and `torch.nn.CrossEntropyLoss`.

    Neither target is built: value and gradient are computed in closed form. Differs from Keras: the
    default reduction is "sum". Without weights it is the mean over the tokens that are not padding
    (id 0), on each replica. With the weights of `TokenBatches`, which are 0 on padding (mask /
    number of tokens in the global batch), it is the exact mean on any number of replicas.

    Args:
        label_smoothing: float `e` in [0, 1).
        convention: "t2t" or "keras".
        reduction, name, dtype: As in `keras.losses.Loss`; float64 logits are never cast down.

    Call arguments:
        y_true: int `[batch, length]`, ids in `[0, V)`.
        y_pred: float `[batch, length, V]`, logits; half precisions are raised to float32.

    Returns:
        Scalar, or `[batch, length]` with `reduction="none"`.

    Raises:
        ValueError: If the smoothing is outside [0, 1) or the convention is unknown.

    Example:

    >>> loss = keras_transformer.training.LabelSmoothedCrossEntropy(0.1)
    >>> value = loss(np.array([[1, 2]]), np.zeros((1, 2, 5), "float32"), np.array([[0.5, 0.5]]))
    >>> round(float(value), 4)  # ln(5)
    1.6094

    Reference: Vaswani et al. (2017), section 5.4; Szegedy et al. (2016), section 7; tensor2tensor's
    `smoothing_cross_entropy`.
    """

    def __init__(
        self,
        label_smoothing: float = 0.1,
        convention: str = "t2t",
        reduction: str | None = "sum",
        name: str = "label_smoothed_cross_entropy",
        dtype: Any = None,
    ):
        super().__init__(name=name, reduction=reduction, dtype=dtype)
        if not 0.0 <= label_smoothing < 1.0:
            raise ValueError(f"`label_smoothing` must be in [0, 1). Received: {label_smoothing=}")
        check_choice("convention", convention, CONVENTIONS)
        self.label_smoothing = float(label_smoothing)
        self.convention = convention

    def __call__(
        self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None
    ) -> Tensor:
        # keras.losses.Loss casts to its own dtype, which would round float64 logits.
        is_wide = keras.backend.standardize_dtype(y_pred.dtype) == "float64"
        if is_wide and self.dtype != "float64":
            loss = self.from_config({**self.get_config(), "dtype": "float64"})
            return loss(y_true, y_pred, sample_weight)
        if sample_weight is None and self.reduction == "sum":
            sample_weight = token_mean_weights(y_true, self.dtype)
        return super().__call__(y_true, y_pred, sample_weight)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        logits = ops.convert_to_tensor(y_pred)
        logits = ops.cast(logits, at_least_float32(logits.dtype))
        labels = ops.cast(y_true, "int32")
        smoothing = uniform_share(self.label_smoothing, logits.shape[-1], self.convention)
        is_tensorflow = keras.backend.backend() == "tensorflow"
        return (fused_cross_entropy if is_tensorflow else cross_entropy)(labels, logits, smoothing)

    def get_config(self) -> dict:
        config = {"label_smoothing": self.label_smoothing, "convention": self.convention}
        return {**super().get_config(), **config}


@keras.saving.register_keras_serializable(package="keras_transformer")
class LossModel(MicroBatchModel):
    """A functional model of a Transformer's layers that maps ids to the loss of every token.

    Loss and gradient equal those of the `Transformer` with `LabelSmoothedCrossEntropy`, but logits
    are computed in slices of at most 512 MB, or 4 GB with JAX on a GPU. On TensorFlow, padding
    positions are skipped, except under XLA, which computes all logits at once. The model also takes
    rows with several sentences, as from `TokenBatches(packed_width=...)`. Training this model
    trains the Transformer, whose weights it shares.

    Args:
        transformer: The `Transformer`.
        label_smoothing: float in [0, 1), which goes to the other ids.
        convention: "t2t", an equal share for each of the other ids, or "keras", for each id; see
            `LabelSmoothedCrossEntropy`.
        packed: Whether rows hold several sentences.
        r_drop: Alpha of R-Drop, 0 for none. Every training step computes each row twice, with
            different dropout. The loss of a token is half of equation (4): the mean of both
            cross-entropies, plus `alpha / 4` times the two divergences of the distributions.
        name: Name of the model.

    Call arguments:
        inputs: Dict of `"source"`, int32 `[batch, source_length]`, and `"target"` and
            `"labels"`, int32 `[batch, target_length]`; if `packed` also `"source_segments"` and
            `"target_segments"`, see `Transformer.decoder_states`. Id 0 is padding.

    Returns:
        The loss of every token, `[batch, target_length]` in at least float32, 0 on padding.

    Example:

    >>> from keras_transformer.training import LossModel, compile_model
    >>> ids = np.array([[5, 6, 3]])
    >>> model = LossModel(keras_transformer.Transformer.from_preset("tiny", vocab_size=100))
    >>> model = compile_model(model, keras_transformer.TrainingRecipe())
    >>> batch = ({"source": ids, "target": ids}, ids, np.full((1, 3), 1 / 3, "float32"))
    >>> loss = model.train_on_batch(*LossModel.arrange(*batch))

    Reference: Vaswani et al. (2017), sections 3.4 and 5.4; packing as in T5 (Raffel et al., 2020,
    section 3.1.2), with attention within segments only; R-Drop, Liang et al. (2021).
    """

    def __init__(
        self,
        transformer: keras.Model,
        label_smoothing: float = 0.1,
        convention: str = "t2t",
        packed: bool = False,
        r_drop: float = 0.0,
        name: str = "loss_model",
    ):
        check_boolean("packed", packed)
        r_drop = checked_number("r_drop", r_drop, 0, 1e6)
        loss = LabelSmoothedCrossEntropy(label_smoothing, convention)
        names = ["source", "target", "labels"]
        if packed:
            names += ["source_segments", "target_segments"]
        inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in names}
        twice = _TwiceInTraining() if r_drop else lambda ids: ids
        ids = [twice(inputs[name]) for name in names if name != "labels"]
        states = transformer.decoder_states(*ids)
        size = transformer.config.output_vocab_size
        smoothing = uniform_share(loss.label_smoothing, size, convention)
        projection = ProjectedCrossEntropy(
            transformer.target_embedding,
            smoothing,
            r_drop,
            dtype=transformer.dtype_policy.variable_dtype,
            name="token_losses",
        )
        super().__init__(inputs, projection(states, inputs["labels"]), name=name)
        self.transformer = transformer
        self.config = transformer.config
        # `compile` reads it to scale the loss of float16; a functional model does not set it.
        self.dtype_policy = transformer.dtype_policy
        self.label_smoothing = loss.label_smoothing
        self.convention = convention
        self.packed = packed
        self.r_drop = r_drop
        self._projection = projection

    @staticmethod
    def arrange(inputs: dict, labels: Tensor, weights: Tensor) -> tuple:
        """Returns `(inputs, labels, weights)` for `fit`, with the labels among the inputs.

        Args:
            inputs, labels, weights: A batch as `TokenBatches` gives it.
        """
        return {**inputs, "labels": labels}, labels, weights

    def compile(
        self, optimizer: Any = "rmsprop", loss: Any = None, jit_compile: bool = False, **kwargs: Any
    ) -> None:
        """Compiles like `keras.Model`, with the weighted sum of the outputs as the default loss.

        Args:
            optimizer, jit_compile, **kwargs: As in `keras.Model.compile`.
            loss: A loss whose `y_pred` are the losses of the tokens; None for their weighted sum,
                without weights their mean.
        """
        self._projection.static_shapes = bool(jit_compile)
        super().compile(
            optimizer=optimizer,
            loss=loss or _TokenLossSum("token_loss_sum", "sum"),
            jit_compile=jit_compile,
            **kwargs,
        )

    def compile_from_config(self, config: dict) -> None:
        # Keras needs this in a model that overrides `compile`.
        self.compile(**keras.saving.deserialize_keras_object(config))
        self.optimizer.build(self.trainable_variables)

    def get_config(self) -> dict:
        names = "label_smoothing", "convention", "packed", "r_drop", "name"
        config = {name: getattr(self, name) for name in names}
        return {"transformer": keras.saving.serialize_keras_object(self.transformer), **config}

    @classmethod
    def from_config(cls, config: dict, custom_objects: dict | None = None) -> "LossModel":
        transformer = keras.saving.deserialize_keras_object(config["transformer"])
        return cls(**{**config, "transformer": transformer})


def compile_model(
    model: keras.Model,
    recipe: TrainingRecipe,
    metrics: Sequence = (),
    jit_compile: bool = False,
    **kwargs: Any,
) -> keras.Model:
    """Compiles a Transformer with the loss and the optimizer of its recipe.

    Without sample weights, loss and metrics are means over the tokens that are not padding.
    Metrics on logits cost two more passes over [tokens, vocabulary] a step, which takes time on a
    CPU; `evaluate_tokens` gives the same figures on a validation set.

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
        ValueError: If `jit_compile` is true with more than one replica, or weights are float16.
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


class _TwiceInTraining(keras.layers.Layer):
    """Repeats each row of ids in training: row 0, row 0, row 1, row 1, and so on."""

    def call(self, ids, training=False):
        return ops.repeat(ids, 2, axis=0) if training else ids

    def compute_output_spec(self, ids, training=False):
        return keras.KerasTensor(ids.shape, ids.dtype)


@keras.saving.register_keras_serializable(package="keras_transformer")
class _TokenLossSum(keras.losses.Loss):
    """The sum of a model's outputs, which are losses already, times the sample weights."""

    def __call__(self, y_true, y_pred, sample_weight=None):
        if sample_weight is None:
            sample_weight = token_mean_weights(y_true, self.dtype)
        return super().__call__(y_true, y_pred, sample_weight)

    def call(self, y_true, y_pred):
        return y_pred
