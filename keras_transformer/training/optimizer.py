"""The paper's learning rate, and Adam, also with clipping or rates per layer."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
from keras import ops

from keras_transformer.checks import check_positive_number
from keras_transformer.layers.tensors import Tensor
from keras_transformer.models.micro_batches import num_replicas
from keras_transformer.training.distribution import model_scope


@keras.saving.register_keras_serializable(package="keras_transformer")
class TransformerSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """The paper's schedule, `scale * d_model^-0.5 * min(s^-0.5, s * warmup_steps^-1.5)`.

    Keras calls a schedule with 0 for the first step, which is `s = 1` in the formula; the peak is
    at `s = warmup_steps`.

    Args:
        d_model: Width of the model.
        warmup_steps: Steps until the peak.
        scale: Factor of the rate. `TransformerSchedule.with_peak` computes it.

    Call arguments:
        step: int scalar, number of updates done so far.

    Returns:
        float32 scalar.

    Raises:
        ValueError: If `d_model`, `warmup_steps` or `scale` is not positive.

    Example:

    >>> f"{float(keras_transformer.training.TransformerSchedule(512)(3999)):.3e}"
    '6.988e-04'

    Reference: Vaswani et al. (2017), equation 3.
    """

    def __init__(self, d_model: int, warmup_steps: int = 4000, scale: float = 1.0):
        super().__init__()
        self.d_model = d_model
        self.warmup_steps = warmup_steps
        self.scale = scale
        for name in ("d_model", "warmup_steps", "scale"):
            check_positive_number(name, getattr(self, name))

    @classmethod
    def with_peak(
        cls, peak_learning_rate: float, d_model: int, warmup_steps: int = 4000
    ) -> "TransformerSchedule":
        """Returns the schedule that reaches `peak_learning_rate` after the warm-up.

        Args:
            peak_learning_rate: float.
            d_model, warmup_steps: As in `TransformerSchedule`.
        """
        check_positive_number("peak_learning_rate", peak_learning_rate)
        return cls(d_model, warmup_steps, peak_learning_rate * d_model**0.5 * warmup_steps**0.5)

    def __call__(self, step: Tensor) -> Tensor:
        number = ops.cast(step, "float32") + 1.0
        rate = ops.minimum(number**-0.5, number * float(self.warmup_steps) ** -1.5)
        return self.scale * float(self.d_model) ** -0.5 * rate

    def get_config(self) -> dict:
        return {name: getattr(self, name) for name in ("d_model", "warmup_steps", "scale")}


@keras.saving.register_keras_serializable(package="keras_transformer")
class FusedAdam(keras.optimizers.Adam):
    """`keras.optimizers.Adam` with TensorFlow's fused operation where that is possible.

    Keras runs about twenty operations on each variable; the fused operation needs one pass, and the
    smaller graph is traced seconds sooner. With other backends, several replicas, `amsgrad` or
    dtypes other than float32, it runs Keras' operations; both give equal results up to rounding.
    The arguments are those of `keras.optimizers.Adam`. Weights in float16 are refused: squares of
    small gradients, and an `epsilon` of 1e-9, are 0 in it. `"mixed_float16"` has float32 weights.

    Attributes:
        gradient_norm: Scalar variable with the norm of the last gradient, before any clipping;
            None without `watch_gradient_norm`.
        averages_at_end: Whether `fit` with `use_ema` ends with the moving average as the
            weights, as in Keras. `train` sets it to False, to choose among several candidates.

    Example:

    >>> keras_transformer.training.FusedAdam(1e-3, beta_2=0.98).beta_2
    0.98

    Reference: Kingma and Ba (2015), the variant in the last paragraph of section 2, as in Keras.
    """

    _fused_arguments: dict[str, Any] | None = None  # that all variables share in a step
    gradient_norm = None
    clip_norm: float | None = None  # of `GlobalClipAdam`
    averages_at_end = True

    def watch_gradient_norm(self, model: keras.Model) -> None:
        """Stores the norm of each whole gradient in `gradient_norm`, from the first step on.

        This costs a pass over the gradient in each step and, with several replicas, an exchange of
        the gradient between them. TensorFlow only.

        Args:
            model: The model that is trained.
        """
        import tensorflow as tf

        if self.gradient_norm is None:
            with model_scope(model):
                # A Keras variable would become a part of the optimizer's saved state.
                self.gradient_norm = tf.Variable(
                    0.0, trainable=False, aggregation=tf.VariableAggregation.MEAN
                )

    def build(self, variables: Sequence) -> None:
        for variable in variables:
            if variable.dtype == "float16":
                rule = 'Weights in float16 cannot be trained; use the dtype policy "mixed_float16"'
                raise ValueError(f"{rule}. Received: {variable.path!r} of dtype float16")
            if variable.dtype == "bfloat16" and self.beta_2 > 1 - 2**-9:
                rule = f"beta_2={self.beta_2} is 1 in bfloat16, so nothing would be trained; use "
                rule += 'the dtype policy "mixed_bfloat16", or a smaller beta_2'
                raise ValueError(f"{rule}. Received: {variable.path!r} of dtype bfloat16")
            if self.use_ema and getattr(variable, "overwrite_with_gradient", False):
                rule = "Keras keeps no moving average (`use_ema`) of a model in float8"
                raise ValueError(f"{rule}. Received: use_ema=True and {variable.path!r}")
        super().build(variables)

    def finalize_variable_values(self, var_list: Sequence) -> None:
        if self.averages_at_end:
            super().finalize_variable_values(var_list)

    def _clip_gradients(self, grads):
        # Keras has summed accumulated steps, unscaled the gradients, and left out the variables
        # whose "gradient" is their next value, those of float8.
        grads = super()._clip_gradients(grads)
        is_plain = self.gradient_norm is None and self.clip_norm is None
        return grads if is_plain else self._measure_and_clip(grads)

    def _measure_and_clip(self, grads):
        """Returns the gradients, clipped if `clip_norm` is set.

        Stores the norm of the whole gradient if it is watched.
        """
        sums, replicas = grads, num_replicas()
        if keras.backend.backend() == "tensorflow":
            import tensorflow as tf

            sums = [tf.convert_to_tensor(gradient) for gradient in grads]
            if replicas > 1:
                context = tf.distribute.get_replica_context()
                sums = context.all_reduce(tf.distribute.ReduceOp.SUM, sums)
        squares = [ops.sum(ops.square(ops.cast(gradient, "float32"))) for gradient in sums]
        norm = ops.sqrt(sum(squares))
        if self.gradient_norm is not None:
            self.gradient_norm.assign(norm)
        if self.clip_norm is None:
            return grads
        # Keras sums over the replicas once more, so each replica returns only its share.
        scale = ops.minimum(1.0, self.clip_norm / ops.maximum(norm, 1e-12)) / replicas
        return [gradient * ops.cast(scale, gradient.dtype) for gradient in sums]

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        if keras.backend.backend() != "tensorflow":
            return super()._backend_update_step(grads, trainable_variables, learning_rate)
        import tensorflow as tf

        # Of an embedding, the gradient has a slice for each use of a row. Keras would square them
        # one by one, and not their sum.
        grads = [tf.convert_to_tensor(gradient) for gradient in grads]
        if num_replicas() > 1 or self.amsgrad:
            return super()._backend_update_step(grads, trainable_variables, learning_rate)
        step = tf.cast(self.iterations + 1, "float32")
        values = {"beta1": self.beta_1, "beta2": self.beta_2, "epsilon": self.epsilon}
        terms = {name: tf.constant(value, "float32") for name, value in values.items()}
        powers = {f"{name}_power": tf.pow(terms[name], step) for name in ("beta1", "beta2")}
        self._fused_arguments = terms | powers
        # Without `super()`: Keras would sum the gradients even over one replica, with a custom
        # gradient, and TensorFlow keeps that forever, together with the graph of the step.
        for gradient, variable in zip(grads, trainable_variables, strict=True):
            self.update_step(gradient, variable, learning_rate)
        self._fused_arguments = None

    def update_step(self, gradient: Tensor, variable: Any, learning_rate: Tensor) -> None:
        if self._fused_arguments is None or variable.dtype != "float32":
            return super().update_step(gradient, variable, learning_rate)
        import tensorflow as tf

        def handle(variable):  # of a `tf.Variable`, or of the one inside a Keras variable
            return (variable.value if isinstance(variable, keras.Variable) else variable).handle

        index = self._get_variable_index(variable)
        tf.raw_ops.ResourceApplyAdam(
            var=handle(variable),
            m=handle(self._momentums[index]),
            v=handle(self._velocities[index]),
            lr=tf.cast(learning_rate, "float32"),
            grad=tf.cast(gradient, "float32"),
            **self._fused_arguments,
        )


@keras.saving.register_keras_serializable(package="keras_transformer")
class GlobalClipAdam(FusedAdam):
    """Adam that clips by the norm of the whole gradient, after the sum over the replicas.

    Differs from `keras.optimizers.Adam(global_clipnorm=...)`, which clips the gradient of each
    replica of a `MirroredStrategy` before the sum.

    Args:
        learning_rate, **kwargs: As in `keras.optimizers.Adam`.
        clip_norm: The largest norm of the whole gradient.

    Raises:
        ValueError: If `clip_norm` is not positive.

    Example:

    >>> keras_transformer.training.GlobalClipAdam(1e-3, clip_norm=1.0).clip_norm
    1.0
    """

    def __init__(self, learning_rate: Any = 0.001, clip_norm: float = 1.0, **kwargs: Any):
        super().__init__(learning_rate, **kwargs)
        check_positive_number("clip_norm", clip_norm)
        self.clip_norm = clip_norm

    def get_config(self) -> dict:
        return {**super().get_config(), "clip_norm": self.clip_norm}


@keras.saving.register_keras_serializable(package="keras_transformer")
class LayerwiseAdam(FusedAdam):
    """Adam that multiplies the learning rate by a factor for each part of a model.

    Scaling gradients has no such effect: Adam divides by their size. Weight decay is not scaled.

    Args:
        learning_rate, **kwargs: As in `keras.optimizers.Adam`.
        factors: Dict from parts of the `path`s of weights, such as `"encoder"` or
            `"encoder/block_0"`, to numbers of at least 0. If a path contains several of them, the
            longest counts; if it contains none, the factor is 1.

    Raises:
        ValueError: If a factor is negative or not finite or, in `build`, applies to no weight.

    Example:

    >>> from keras_transformer.training import LayerwiseAdam
    >>> optimizer = LayerwiseAdam(1e-3, factors={"encoder": 0.1, "encoder/block_0": 0.01})
    >>> model = keras_transformer.models.Transformer.from_preset("tiny", vocab_size=100)
    >>> model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))

    Reference: Howard and Ruder (2018), section 3.2, "discriminative fine-tuning".
    """

    def __init__(
        self, learning_rate: Any = 0.001, factors: Mapping[str, float] | None = None, **kwargs: Any
    ):
        super().__init__(learning_rate, **kwargs)
        self.factors = dict(factors or {})
        for part, factor in self.factors.items():
            if not 0 <= factor < float("inf"):
                rule = "A factor must be a number of at least 0"
                raise ValueError(f"{rule}. Received: factors[{part!r}]={factor!r}")
        self._factor_of: list[float] = []

    def build(self, variables: Sequence) -> None:
        super().build(variables)
        paths = [f"/{variable.path}/" for variable in variables]
        keys = {part: f"/{part.strip('/')}/" for part in self.factors}  # whole names
        for part, key in keys.items():
            if not any(key in path for path in paths):
                raise ValueError(
                    "A key of `factors` must be a part of the path of a trainable weight, such as "
                    f"{variables[0].path!r}. Received: factors with {part!r}"
                )
        matches = ([part for part in keys if keys[part] in path] for path in paths)
        self._factor_of = [self.factors[max(m, key=len)] if m else 1.0 for m in matches]

    def update_step(self, gradient: Tensor, variable: Any, learning_rate: Tensor) -> None:
        factor = self._factor_of[self._get_variable_index(variable)]
        super().update_step(gradient, variable, learning_rate * factor)

    def get_config(self) -> dict:
        return {**super().get_config(), "factors": dict(self.factors)}
