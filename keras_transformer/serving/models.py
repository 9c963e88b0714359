"""`ServedModel`: a version of a model that the server answers with, and where its files are."""

import dataclasses
import functools
import json
import logging
import pathlib
import threading
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from keras_transformer.data.languages import LANGUAGES
from keras_transformer.errors import UserError
from keras_transformer.files import current_file, read_json
from keras_transformer.layouts import (
    CONFIG_FILE,
    IN_SAVED_MODEL,
    SAVED_MODEL_FILE,
    SETTINGS_FILE,
    find_config,
)

_LOGGER = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Signature:
    """A function of a model, from the texts of each input to arrays with a row for each text."""

    inputs: tuple[str, ...]
    function: Any  # TensorFlow traces it at the first use.
    is_random: bool = False

    def __call__(self, texts: Mapping[str, list[bytes]]) -> dict[str, np.ndarray]:
        import tensorflow as tf

        tensors = {name: tf.constant(texts[name], tf.string) for name in self.inputs}
        return {name: output.numpy() for name, output in self.function(**tensors).items()}

    @property
    def outputs(self) -> Mapping[str, Any]:
        """The `tf.TensorSpec` of each output."""
        trace = getattr(self.function, "get_concrete_function", lambda: self.function)
        return trace().structured_outputs


class ServedModel:
    """One version of a model: a model directory, or a SavedModel.

    Args:
        name: Name of the model.
        version: Number of the version.
        path: Folder of the model.
        glossary: `Glossary` of a model directory, or None.
        quantize: `"int8"` for a model directory that computes in int8, or None.
        engine: `"ctranslate2"` for a translator that searches in CTranslate2, or None.

    Attributes:
        pipeline: The `Translator` or `Parser` of a model directory; None for a SavedModel.
        signatures: The signatures of a SavedModel that take texts, or those that an export would
            have. Like `pipeline`, it exists after `load`.
        streams: Number of batches that a server computes at the same time.
    """

    pipeline: Any
    signatures: dict[str, Signature]
    streams: int = 1

    def __init__(
        self,
        name: str,
        version: int,
        path: pathlib.Path,
        glossary: Any = None,
        quantize: str | None = None,
        engine: str | None = None,
    ):
        self.name, self.version, self.path = name, version, path
        self.glossary, self.quantize, self.engine = glossary, quantize, engine
        self._lock = threading.Lock()

    def load(self) -> None:
        """Loads the model, if it is not loaded yet."""
        with self._lock:  # Several requests may be the first.
            if not hasattr(self, "signatures"):
                is_saved_model = (self.path / SAVED_MODEL_FILE).is_file()
                self.signatures = self._load_saved_model() if is_saved_model else self._load_files()

    def _load_files(self):
        from keras_transformer.inference.model_directory import read_config
        from keras_transformer.inference.tasks import get_task

        task = get_task(read_config(self.path)["task"])
        dtype = "float32" if self.quantize or self.engine else "auto"
        self.pipeline = pipeline = task.pipeline.load(self.path, dtype=dtype)
        if self.glossary is not None:
            self.glossary.give_to(pipeline)
        options = {}
        if self.engine:
            from keras_transformer.export import CTranslate2Engine

            options["engine"] = CTranslate2Engine(pipeline, self.quantize, self.streams)
        elif self.quantize:
            pipeline.quantize()
        served = task.served_functions(pipeline, pipeline.search, **options)
        functions = {name: getattr(served.module, name) for name in served.inputs}
        is_random = pipeline.search.is_random
        return {n: Signature(served.inputs[n], f, is_random) for n, f in functions.items()}

    def _load_saved_model(self):
        import tensorflow as tf
        import tensorflow_text  # noqa: F401  registers the tokenizer's operations

        from keras_transformer.models.processor import has_fast_bfloat16

        given = {"--glossary": self.glossary, "--quantize": self.quantize}
        given["--engine"] = self.engine
        if option := next((name for name, value in given.items() if value), None):
            rule = f"{option} of serve is for model directories; a SavedModel has its own settings"
            raise UserError(f"{rule}. Received: {str(self.path)!r}")
        # The signatures do not keep the variables of their owner alive.
        self.pipeline, self._owner = None, tf.saved_model.load(str(self.path))
        signatures = {}
        for name, function in self._owner.signatures.items():
            specs = function.structured_input_signature[1]
            if all(s.dtype == tf.string and s.shape.rank == 1 for s in specs.values()):
                signatures[name] = Signature(tuple(sorted(specs)), function)
        self.card.update(_settings_of(signatures))  # There may be no model directory inside.
        settings = self.card
        if "bfloat16" in settings.get("precision", "") and not has_fast_bfloat16():
            message = "%s computes in bfloat16, which may be slow on this machine: export it with "
            _LOGGER.warning(message + "--precision float32.", self.path)
        is_random = settings.get("search", {}).get("name") == "sampling"
        return {n: dataclasses.replace(s, is_random=is_random) for n, s in signatures.items()}

    def warm_up(self) -> None:
        """Loads the model, and answers a text, which compiles `serving_default`."""
        self.load()
        if "serving_default" not in self.signatures:
            rule = "A model needs a signature `serving_default` from strings [batch]"
            raise UserError(f"{rule}. Received: {str(self.path)!r} with {[*self.signatures]}")
        signature = self.signatures["serving_default"]
        signature({name: [b"" if name in LANGUAGES else b"a"] for name in signature.inputs})

    def metadata(self) -> dict[str, Any]:
        """Returns the answer to `/metadata`; it traces all signatures."""
        from tensorflow.core.framework.types_pb2 import DataType

        def tensor_info(name, dtype, shape):
            dims = [{"size": str(-1 if size is None else size), "name": ""} for size in shape]
            tensor_shape = {"dim": dims, "unknown_rank": False}
            return {"dtype": DataType.Name(dtype), "tensor_shape": tensor_shape, "name": name}

        self.load()
        signatures: dict[str, dict[str, Any]] = {}
        for name, signature in self.signatures.items():
            inputs = {n: tensor_info(n, DataType.DT_STRING, [None]) for n in signature.inputs}
            outputs = {
                n: tensor_info(n, spec.dtype.as_datatype_enum, spec.shape)
                for n, spec in signature.outputs.items()
            }
            signatures[name] = {"inputs": inputs, "outputs": outputs, "defaults": {}}
            signatures[name]["method_name"] = "tensorflow/serving/predict"
        spec = {"name": self.name, "signature_name": "", "version": str(self.version)}
        return {"model_spec": spec, "metadata": {"signature_def": {"signature_def": signatures}}}

    @functools.cached_property
    def languages(self) -> dict[str, Any]:
        """The codes of a model's languages, and its own; none for a model without a choice."""
        if LANGUAGES[0] not in self.signatures["serving_default"].inputs:
            return {}
        settings = _settings_of(self.signatures)
        return {name: settings[name] for name in ("languages", *LANGUAGES)}

    @functools.cached_property
    def card(self) -> dict[str, Any]:
        """The entries of `config.json`; none for a SavedModel without a model directory inside."""
        inside = self.path / IN_SAVED_MODEL
        path = current_file(inside if inside.is_dir() else self.path, CONFIG_FILE)
        return read_json(path) if path.is_file() else {}


def _settings_of(signatures):
    """Returns the settings of an export, which `limits` returns; none if others wrote it."""
    limits = signatures.get("limits")
    outputs = limits({"text": [b""]}) if limits and limits.inputs == ("text",) else {}
    return json.loads(outputs["settings"][0]) if "settings" in outputs else {}


def find_models(
    texts: Iterable[str],
    glossary: Any = None,
    quantize: str | None = None,
    engine: str | None = None,
) -> dict[str, dict[int, ServedModel]]:
    """Returns the versions of each model by name; loads nothing.

    `texts` are `PATH` or `NAME=PATH`: a model directory, a SavedModel, or a folder of SavedModels
    with a number for each version. The default name is that of the folder. `glossary`, `quantize`
    and `engine` are those of each `ServedModel`. Raises a `UserError` if there is no model, or two
    have the same name.
    """
    models: dict[str, dict[int, ServedModel]] = {}
    for text in texts:
        # A folder may have = in its name.
        given, path = "", text
        if not pathlib.Path(text).exists() and "=" in text:
            given, _, path = text.partition("=")
        default, folders = _find_versions(path)
        name = given or default
        if not name or {"/", ":"} & set(name) or name in models:
            rule = "Each model needs a name of its own, without / and :, as in NAME=PATH"
            raise UserError(f"{rule}. Received: {name!r}")
        models[name] = {
            number: ServedModel(name, number, folder, glossary, quantize, engine)
            for number, folder in folders.items()
        }
    return models


def _find_versions(path):
    """Returns the name of a model, and the folder of each version."""
    folder = pathlib.Path(path).resolve()
    if (folder / SAVED_MODEL_FILE).is_file() or current_file(folder, CONFIG_FILE).is_file():
        is_version = folder.name.isdecimal()
        number, name = (folder.name, folder.parent.name) if is_version else (1, folder.name)
        return name, {int(number): folder}
    folders = [file.parent for file in folder.glob(f"*/{SAVED_MODEL_FILE}")]
    versions = {int(f.name): f for f in folders if f.name.isdecimal()}
    if not versions:
        if not folder.is_dir() or (folder / SETTINGS_FILE).is_file():
            find_config(path)  # It raises an error that tells what is missing.
        rule = (
            f"A model is a folder with {CONFIG_FILE} or {SAVED_MODEL_FILE}, or with a folder of a"
        )
        raise UserError(f"{rule} number for each version. Received: {path!r}")
    return folder.name, versions
