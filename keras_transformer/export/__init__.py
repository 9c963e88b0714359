"""Exports of a trained translator to formats that other programs serve."""

from keras_transformer.export.saved_model import check_export_directory, export_saved_model

__all__ = ["check_export_directory", "export_saved_model"]
