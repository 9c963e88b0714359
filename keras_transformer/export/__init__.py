"""Exports of a trained translator or parser to formats that other programs serve.

Nothing of those programs is imported before a function is called.
"""

from keras_transformer.export.ctranslate2 import export_ctranslate2
from keras_transformer.export.formats import check_export_directory, check_export_packages
from keras_transformer.export.litert import export_litert
from keras_transformer.export.onnx import export_onnx
from keras_transformer.export.saved_model import export_saved_model

__all__ = [
    "check_export_directory",
    "check_export_packages",
    "export_ctranslate2",
    "export_litert",
    "export_onnx",
    "export_saved_model",
]
