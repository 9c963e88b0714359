"""The learning rate of the paper: linear warm-up, then the inverse square root of the step."""

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_transformer")
class TransformerSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """`scale * d_model^-0.5 * min(s^-0.5, s * warmup_steps^-1.5)`, `s` from 1.

    Keras calls a schedule with 0 for the first step; the formula's steps start at 1, so the first
    step has `s = 1` and a learning rate above zero, and the peak is at `s = warmup_steps`.

    Args:
        d_model: int, width of the model.
        warmup_steps: int, steps until the peak.
        scale: float, multiplies everything. `TransformerSchedule.with_peak` computes it.

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

    Source: Vaswani et al. (2017), equation 3.
    """

    def __init__(self, d_model, warmup_steps=4000, scale=1.0):
        super().__init__()
        for name, value in (("d_model", d_model), ("warmup_steps", warmup_steps), ("scale", scale)):
            if not value > 0:
                raise ValueError(f"`{name}` must be positive. Received: {name}={value!r}")
        self.d_model = d_model
        self.warmup_steps = warmup_steps
        self.scale = scale

    @classmethod
    def with_peak(cls, peak_learning_rate, d_model, warmup_steps=4000):
        """Returns the schedule that reaches `peak_learning_rate` after the warm-up.

        Args:
            peak_learning_rate: float.
            d_model: int, width of the model.
            warmup_steps: int.

        Returns:
            `TransformerSchedule`.

        Example:

        >>> from keras_transformer.training import TransformerSchedule
        >>> f"{float(TransformerSchedule.with_peak(5e-3, 128, 2000)(1999)):.1e}"
        '5.0e-03'
        """
        if not peak_learning_rate > 0:
            raise ValueError(
                "`peak_learning_rate` must be positive. "
                f"Received: peak_learning_rate={peak_learning_rate!r}"
            )
        scale = peak_learning_rate * d_model**0.5 * warmup_steps**0.5
        return cls(d_model, warmup_steps, scale)

    def __call__(self, step):
        number = ops.cast(step, "float32") + 1.0
        rate = ops.minimum(number**-0.5, number * float(self.warmup_steps) ** -1.5)
        return self.scale * float(self.d_model) ** -0.5 * rate

    def get_config(self):
        return {
            "d_model": self.d_model,
            "warmup_steps": self.warmup_steps,
            "scale": self.scale,
        }
