"""Losses of a Transformer: the reference, the fused one of TensorFlow, and the model with both."""

from keras_transformer.losses.cross_entropy import LabelSmoothedCrossEntropy
from keras_transformer.losses.loss_model import LossModel

__all__ = ["LabelSmoothedCrossEntropy", "LossModel"]
