"""Adam with learning rates of their own for parts of a model."""

import keras

from keras_transformer.training.adam import FusedAdam


@keras.saving.register_keras_serializable(package="keras_transformer")
class LayerwiseAdam(FusedAdam):
    """Adam that multiplies the learning rate by a factor for each part of a model.

    Scaling gradients does not do this: Adam divides by their size. A weight decay is not scaled.

    Args:
        learning_rate: float or schedule, of what has the factor 1.
        factors: dict of parts of the `path`s of weights, such as `"encoder"` or
            `"encoder/block_0"`, to numbers that are not negative. The longest part that is in a
            path counts; weights whose path has none have the factor 1. With 0 a weight does not
            move.
        **kwargs: as in `keras.optimizers.Adam`.

    Raises:
        ValueError: if a factor is negative, or, once the model is known, is that of no weight.

    Example:

    >>> from keras_transformer.training import LayerwiseAdam
    >>> optimizer = LayerwiseAdam(1e-3, factors={"encoder": 0.1, "encoder/block_0": 0.01})
    >>> model = keras_transformer.models.Transformer.from_preset("tiny", vocab_size=100)
    >>> model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))

    Reference: Howard and Ruder (2018), section 3.2, "discriminative fine-tuning".
    """

    def __init__(self, learning_rate=0.001, factors=None, **kwargs):
        super().__init__(learning_rate, **kwargs)
        self.factors = dict(factors or {})
        for part, factor in self.factors.items():
            if not 0 <= factor < float("inf"):
                raise ValueError(
                    "A factor must be a number of at least 0. "
                    f"Received: factors[{part!r}]={factor!r}"
                )
        self._factor_of = ()

    def build(self, variables):
        super().build(variables)
        paths = [variable.path for variable in variables]
        for part in self.factors:
            if not any(_has_part(path, part) for path in paths):
                raise ValueError(
                    "A key of `factors` must be a part of the path of a trainable weight, such as "
                    f"{paths[0]!r}. Received: factors with {part!r}"
                )
        self._factor_of = tuple(self._find_factor(path) for path in paths)

    def _find_factor(self, path):
        parts = [part for part in self.factors if _has_part(path, part)]
        return self.factors[max(parts, key=len)] if parts else 1.0

    def update_step(self, gradient, variable, learning_rate):
        factor = self._factor_of[self._get_variable_index(variable)]
        super().update_step(gradient, variable, learning_rate * factor)

    def get_config(self):
        return {**super().get_config(), "factors": dict(self.factors)}


def _has_part(path, part):
    """Return whether `part`, whole names between slashes, is in `path`."""
    return f"/{part.strip('/')}/" in f"/{path}/"
