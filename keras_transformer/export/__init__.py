"""Exports of trained pipelines to formats that other programs run."""

from keras_transformer import lazy_names

# These are imported when they are used, so that the command line starts without Keras.
_MODULES = {
    "formats": ["check_export_directory", "export"],
    "ctranslate2": ["export_ctranslate2"],
    "ctranslate2_engine": ["CTranslate2Engine"],
    "runtimes": ["export_litert", "export_onnx"],
    "saved_model": ["export_saved_model"],
    "transformers": ["export_transformers"],
}
__all__, __getattr__, __dir__ = lazy_names(__name__, _MODULES)
