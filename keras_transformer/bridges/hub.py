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
    files = ["*.json", "*.spm", "*.bpe.model", "README.md"]
    try:
        for weights in (_SAFE_WEIGHTS, _WEIGHTS):
            parts = weights.replace(".", "-*-of-*.")
            patterns = [*files, weights, parts]
            folder = pathlib.Path(snapshot_download(name, allow_patterns=patterns))
            if (folder / weights).exists() or any(folder.glob(parts)):
                break
    except Exception as error:  # The hub, the network and the disk have their own.
        rule = f"{name!r} is not a folder, and cannot be downloaded"
        raise UserError(f"{rule}: {one_line(error)}") from error
    return folder


def _find_weights(folder):
    """Returns the files of a model's weights; raises a `UserError` if they cannot be read."""
    for name in (_SAFE_WEIGHTS, _WEIGHTS):
        if (folder / name).is_file():
            paths = [folder / name]
        elif (index := folder / f"{name}.index.json").is_file():
            paths = _parts(index)
        else:
            continue
        if name == _WEIGHTS and importlib.util.find_spec("torch") is None:
            rule = f"{name} is read with torch: pip install torch, or convert it to {_SAFE_WEIGHTS}"
            raise UserError(f"{rule}.")
        return paths
    rule = f"A model has its weights in {_SAFE_WEIGHTS} or {_WEIGHTS}, or in parts with an index"
    raise UserError(f"{rule}. Received: {str(folder)!r} with neither")


def _parts(index):
    """Returns the files that an index of weights names."""
    try:
        # Names alone: a file elsewhere is none of the model's.
        names = {pathlib.Path(part).name for part in read_json(index)["weight_map"].values()}
    except (LookupError, TypeError, AttributeError) as error:
        raise UserError(f"{str(index)!r} is damaged: {one_line(error)}") from error
    paths = [index.with_name(name) for name in sorted(names)]
    if not paths:
        raise UserError(f"{str(index)!r} is damaged: it names no files")
    if lacking := [path.name for path in paths if not path.is_file()]:
        raise UserError(f"{str(index)!r} names files that are missing: {lacking}")
    return paths


def read_weights(folder: pathlib.Path) -> tuple[pathlib.Path, dict]:
    """Returns a file of a model's weights, and its arrays or tensors of torch by name.

    The weights of a large model are in several files, of which the first is returned. Nothing in
    them is executed.

    Raises:
        UserError: If there is no such file, or one is damaged, or torch is needed and missing.
    """
    paths = _find_weights(folder)
    tensors = {name: tensor for path in paths for name, tensor in _read_file(path).items()}
    return paths[0], tensors


def _read_file(path):
    try:
        if path.suffix == ".safetensors":
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
        return tensors
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
