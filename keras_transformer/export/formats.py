"""The registry of export formats, and the checks before an export.

A new format is one entry in `FORMATS` and one function `export_<name>(pipeline, directory,
**options)`, which `export/__init__.py` names. Keras is imported when a function needs it.
"""

import contextlib
import dataclasses
import importlib.util
import logging
import os
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from keras_transformer.checks import check_choice
from keras_transformer.errors import UserError
from keras_transformer.files import atomic_folder
from keras_transformer.inference.tasks import get_task
from keras_transformer.layouts import EXPORTS, Layout
from keras_transformer.settings.base import Count, Settings, settings_dataclass

if TYPE_CHECKING:
    from keras_transformer.inference.pipeline import Pipeline

_LOGGER = logging.getLogger(__name__)
WILDCARDS = "*?[\\"
_Int8 = Literal["int8", "int8_float32", "int8_float16", "int8_bfloat16"]


@settings_dataclass
class SavedModelOptions(Settings):
    """The options of `export_saved_model`.

    Args:
        dtype: Type of the weights and of the computation; bfloat16 halves the size and changes some
            answers; auto is the one that this machine multiplies faster; None for float32.
        num_streams: Number of parts of a request that are searched at the same time, each by one
            thread; for CPUs that are served with one thread per operation; None for 1.
        long_texts: Treatment of a text of several sentences by a translator: split it and join the
            answers, or truncate it at the longest source; None for split.
        quantization: Type of the weights: int8, a quarter of the size; in a SavedModel only for x86
            processors; with litert and ctranslate2 also float16, and with ctranslate2 int8_float16
            and others; None for that of the computation.
    """

    dtype: Literal["float32", "bfloat16", "auto"] | None = None
    num_streams: Count | None = None
    long_texts: Literal["split", "truncate"] | None = None
    quantization: Literal["int8"] | None = None


@settings_dataclass
class Ctranslate2Options(Settings):
    """The options of `export_ctranslate2`.

    Args:
        quantization: Type of the weights: int8, float16, int8_float16 and others of CTranslate2;
            None for float32.
    """

    quantization: Literal[_Int8, "int16", "float16", "bfloat16", "float32"] | None = None


@settings_dataclass
class OnnxOptions(Settings):
    """The options of `export_onnx`.

    Args:
        quantization: Type of the weights; None for float32.
    """

    quantization: Literal["int8"] | None = None


@settings_dataclass
class LitertOptions(Settings):
    """The options of `export_litert`.

    Args:
        quantization: Type of the weights; None for float32.
    """

    quantization: Literal["int8", "float16"] | None = None


@dataclasses.dataclass(frozen=True)
class ExportFormat:
    """An export format."""

    name: str  # also the name of the pip extra that installs `packages`
    packages: tuple[str, ...] = ()  # modules that an export needs
    needs_tensorflow: bool = True  # whether Keras must run on TensorFlow
    # Whether the export itself tokenizes and searches. If not, the program that runs it must do
    # both; the tokenizers are files beside the model.
    includes_search: bool = False
    # Whether it writes tokenizers and the settings of the search in a form of its own.
    has_own_form: bool = False
    options: type[Settings] = Settings  # optional arguments of `export_<name>`

    @property
    def layout(self) -> Layout:
        """The files of an export, and the title of the format in messages."""
        return EXPORTS[self.name]

    def check_options(self, options: Mapping[str, Any]) -> None:
        """Raises a `UserError` if an option has a wrong value."""
        try:
            self.options(**options)
        except ValueError as error:
            raise UserError(f"{error}, format={self.name!r}") from None

    def check_packages(self) -> None:
        """Raises a `UserError` if a package is missing that an export needs."""
        for package in self.packages:
            if importlib.util.find_spec(package) is None:  # An import may take seconds.
                rule = f"An export as {self.name} needs {package}: pip install '.[{self.name}]'"
                raise UserError(f"{rule} in the folder of keras_transformer's source")

    def check_task(self, task: str) -> None:
        """Raises a `UserError` if a task needs its own search and the export lacks it."""
        if get_task(task).needs_own_search and not self.includes_search:
            others = " or ".join(name for name, f in FORMATS.items() if f.includes_search)
            raise UserError(
                f"The {self.layout.title} does not include the search, which the answers for "
                f"{task} need. Export the model as {others}. Received: a model for {task}"
            )


_ALL = (
    ExportFormat("saved_model", includes_search=True, options=SavedModelOptions),
    ExportFormat(
        "ctranslate2", ("ctranslate2",), needs_tensorflow=False, options=Ctranslate2Options
    ),
    ExportFormat("onnx", ("onnx", "tf2onnx", "onnxruntime"), options=OnnxOptions),
    ExportFormat("litert", options=LitertOptions),
    ExportFormat("transformers", needs_tensorflow=False, has_own_form=True),
)
FORMATS = {export_format.name: export_format for export_format in _ALL}


def _format(name):
    check_choice("format", name, FORMATS)
    return FORMATS[name]


def export(
    pipeline: "Pipeline", directory: str | os.PathLike, format: str = "saved_model", **options: Any
) -> pathlib.Path:
    """Writes a model in one of the export formats, and returns `directory`.

    Args:
        pipeline: A `Translator`, or a `Parser` for a format that includes the search.
        directory: A new or empty folder, or an earlier export, which is replaced.
        format: `"saved_model"`, `"ctranslate2"`, `"onnx"`, `"litert"` or `"transformers"`.
        **options: Further arguments of `export_saved_model`, `export_ctranslate2`, `export_onnx`,
            `export_litert` or `export_transformers`, which raise the errors.

    Raises:
        ValueError: If there is no such format.

    Example:

    >>> from keras_transformer import Translator, export  # doctest: +SKIP
    >>> translator = Translator.load("runs/en_de")  # doctest: +SKIP
    >>> export.export(translator, "exports/en_de", "onnx")  # doctest: +SKIP
    """
    from keras_transformer import export as functions

    write = getattr(functions, f"export_{_format(format).name}")
    return write(pipeline, directory, **options)


def check_export_directory(directory: str | os.PathLike, format: str = "saved_model") -> None:
    """Checks that an export may be written to a directory; call it before loading a model.

    Args:
        directory, format: As in `export`.

    Raises:
        UserError: If it is a file or has other files, or TensorFlow cannot read its path.

    Example:

    >>> import tempfile
    >>> from keras_transformer.export import check_export_directory
    >>> check_export_directory(tempfile.mkdtemp())
    """
    chosen, path = _format(format), pathlib.Path(os.path.realpath(directory))
    chosen.layout.check_output(directory)
    if chosen.name == "saved_model" and (wrong := set(path.as_posix()).intersection(WILDCARDS)):
        rule = f"TensorFlow cannot open a SavedModel whose path has one of {WILDCARDS}"
        raise UserError(f"{rule}. Received: {str(path)!r} with {min(wrong)!r}")


@contextlib.contextmanager
def export_folder(
    pipeline: "Pipeline", directory: str | os.PathLike, format: str, **options: Any
) -> Iterator[pathlib.Path]:
    """Checks the arguments, and yields a folder that replaces `directory` if the block succeeds."""
    import keras

    chosen, backend = FORMATS[format], keras.backend.backend()
    chosen.check_options(options)
    if chosen.needs_tensorflow and backend != "tensorflow":
        rule = "is written with the TensorFlow backend (KERAS_BACKEND=tensorflow)"
        raise UserError(f"The {chosen.layout.title} {rule}. Received: {backend=}")
    chosen.check_packages()
    chosen.check_task(pipeline.task)
    if not chosen.includes_search:
        if num_models := len(getattr(pipeline.model, "models", ())):
            rule = "holds one model; export the models of an ensemble one by one"
            raise UserError(
                f"The {chosen.layout.title} {rule}. Received: an Ensemble of {num_models}"
            )
        if not chosen.has_own_form:
            warn_of_constraints(getattr(pipeline.search, "constraints", ()), chosen.layout.title)
        if getattr(pipeline, "glossary", None) is not None:
            _LOGGER.warning("The %s does not apply the glossary.", chosen.layout.title)
        if pipeline.target_tokenizer.beginning:
            message = "The %s does not know its languages: let each text begin with %s and each "
            message += "answer with %s."
            pair = pipeline.source_tokenizer, pipeline.target_tokenizer
            begin = (" ".join(t.pieces(t.beginning)) for t in pair)
            _LOGGER.warning(message, chosen.layout.title, *begin)
    check_export_directory(directory, format)
    with atomic_folder(directory) as aside:
        aside.mkdir()
        if not (chosen.includes_search or chosen.has_own_form):
            pipeline.tokenizers.save(aside)
        yield aside


def warn_of_constraints(constraints: Iterable, title: str) -> None:
    """Logs a warning with constraints of a search, if any, that an export does not apply."""
    names = [
        repr(constraint) if dataclasses.is_dataclass(constraint) else type(constraint).__name__
        for constraint in constraints
    ]
    if names:
        message = "The %s does not apply the constraints of the search: %s."
        _LOGGER.warning(message, title, ", ".join(names))
