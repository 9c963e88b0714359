"""Exports of a trained translator to formats that other programs serve."""

from keras_transformer.export.saved_model import export_saved_model

__all__ = ["export_saved_model"]
