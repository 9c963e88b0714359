"""Published models: a folder in transformers' format, or a model on the Hugging Face hub."""

import importlib.util
import os
import pathlib
import re
import warnings
import zipfile

import numpy as np

from keras_transformer.errors import UserError, one_line
from keras_transformer.files import read_json

# The architectures that can be imported, by `model_type`.
KINDS = {"marian": "OPUS-MT", "m2m_100": "M2M100 and NLLB-200", "mbart": "mBART-50"}
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_SAFE_WEIGHTS, _WEIGHTS = "model.safetensors", "pytorch_model.bin"


def find_model(source: str | os.PathLike, *kinds: str) -> pathlib.Path:
    """Returns the folder of a published model, which is downloaded if it is on the hub.

    Args:
        source: A folder, or a name such as `"Helsinki-NLP/opus-mt-en-de"`, which needs
            huggingface_hub. A model in the hub's cache is not downloaded again.
        *kinds: Allowed values of its `model_type`; none for all of `KINDS`.

    Raises:
        UserError: If there is no such model, or its architecture is another one.
    """
    folder = pathlib.Path(source)
    if folder.exists() and not folder.is_dir():
        raise UserError(f"Expected the folder of a model but {str(source)!r} is a file.")
    if not folder.exists():
        folder = _download(str(source))
    found = read_json(folder / "config.json").get("model_type")
    if found not in (kinds or KINDS):
        names = ", ".join(f"{kind!r} ({KINDS[kind]})" for kind in kinds or KINDS)
        rule = f"Models with these values of model_type can be imported: {names}"
        raise UserError(f"{rule}. Received: {str(source)!r} with model_type={found!r}")
    _find_weights(folder)
    return folder


def _download(name):
    if not _HUB_NAME.fullmatch(name):
        rule = "is neither a folder nor the name of a model on the hub (OWNER/NAME)"
        raise UserError(f"Model not found: {name!r} {rule}.")
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise UserError(
            f"{name!r} is not a folder; a model on the hub needs huggingface_hub: "
            "pip install '.[hub]' in the folder of keras_transformer's source"
        ) from error
    files = ["*.json", "*.spm", "*.bpe.model", "README.md", _SAFE_WEIGHTS]
    try:
        folder = pathlib.Path(snapshot_download(name, allow_patterns=files))
        if not (folder / _SAFE_WEIGHTS).exists():
            folder = pathlib.Path(snapshot_download(name, allow_patterns=[*files, _WEIGHTS]))
    except Exception as error:  # The hub, the network and the disk have their own.
        raise UserError(f"{name!r} cannot be downloaded: {one_line(error)}") from error
    return folder


def _find_weights(folder):
    """Returns the file of a model's weights; raises a `UserError` if it cannot be read."""
    if (path := folder / _SAFE_WEIGHTS).is_file():
        return path
    if not (path := folder / _WEIGHTS).is_file():
        rule = f"A model has its weights in {_SAFE_WEIGHTS} or {_WEIGHTS}"
        raise UserError(f"{rule}. Received: {str(folder)!r} with neither")
    if importlib.util.find_spec("torch") is None:
        rule = f"{_WEIGHTS} is read with torch: pip install torch, or convert it to {_SAFE_WEIGHTS}"
        raise UserError(f"{rule}.")
    return path


def read_weights(folder: pathlib.Path) -> tuple[pathlib.Path, dict]:
    """Returns the file of a model's weights, and its arrays or tensors of torch by name.

    Nothing in the file is executed.

    Raises:
        UserError: If there is no such file, or it is damaged, or torch is needed and missing.
    """
    path = _find_weights(folder)
    try:
        if path.name == _SAFE_WEIGHTS:
            import safetensors.numpy

            tensors = safetensors.numpy.load_file(path)
        else:
            import torch

            with warnings.catch_warnings(action="ignore"):  # Rare kinds are refused below.
                # Files before torch 1.6 are no zip files, and cannot be mapped into memory.
                options = {"weights_only": True, "mmap": zipfile.is_zipfile(path)}
                tensors = torch.load(path, map_location="cpu", **options)
        for name, tensor in tensors.items():
            if not _is_plain(tensor):
                raise ValueError(f"{name!r} is not a dense tensor of floating-point numbers")
        return path, tensors
    except Exception as error:  # safetensors, pickle, zipfile and torch have their own.
        reason = "it is damaged, or holds more than tensors of plain numbers"
        raise UserError(f"{str(path)!r} cannot be read: {reason} ({one_line(error)})") from error


def _is_plain(tensor):
    if isinstance(tensor, np.ndarray):
        return tensor.dtype.kind not in "biuc"
    # A sparse or quantized tensor, one without memory, and one repeated number are not plain.
    is_dense = str(tensor.layout) == "torch.strided" and tensor.device.type == "cpu"
    is_stored = is_dense and tensor.untyped_storage().nbytes() >= tensor.nbytes
    return is_stored and tensor.is_floating_point()
