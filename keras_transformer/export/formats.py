"""The formats of exports: what each writes, and where it may write it."""

import contextlib
import dataclasses
import importlib
import pathlib

from keras_transformer.errors import UserError
from keras_transformer.files import atomic_folder
from keras_transformer.layers.checks import check_choice

_TOKENIZER_FILES = frozenset(
    f"{side}tokenizer{suffix}"
    for side in ("", "source_", "target_")
    for suffix in (".model", ".txt")
)


@dataclasses.dataclass(frozen=True)
class ExportFormat:
    """One format of an export.

    Args:
        title: what it is called in messages.
        marker: the file that every export in this format has.
        entries: all names of files and folders that such an export may hold.
        packages: modules that writing it needs, which the pip extra of the format's name installs.
    """

    title: str
    marker: str
    entries: frozenset
    packages: tuple[str, ...] = ()


FORMATS = {
    "saved_model": ExportFormat(
        "SavedModel",
        "saved_model.pb",
        frozenset(
            {
                "saved_model.pb",
                "variables",
                "assets",
                "assets.extra",
                "fingerprint.pb",
                "keras_metadata.pb",
            }
        ),
    ),
    "ctranslate2": ExportFormat(
        "CTranslate2 model",
        "model.bin",
        frozenset(
            {
                "model.bin",
                "config.json",
                "shared_vocabulary.json",
                "source_vocabulary.json",
                "target_vocabulary.json",
            }
        )
        | _TOKENIZER_FILES,
        packages=("ctranslate2",),
    ),
    "onnx": ExportFormat(
        "ONNX export",
        "encode.onnx",
        frozenset({"encode.onnx", "decode.onnx", "weights.bin"}) | _TOKENIZER_FILES,
        packages=("onnx", "tf2onnx"),
    ),
    "litert": ExportFormat(
        "LiteRT export", "model.tflite", frozenset({"model.tflite"}) | _TOKENIZER_FILES
    ),
}


def check_export_directory(directory, format="saved_model") -> None:
    """Raises unless an export may be written there; to be known before a model is loaded.

    Args:
        directory: missing, empty, or an earlier export without any file of another origin.
        format: `"saved_model"`, `"ctranslate2"`, `"onnx"` or `"litert"`.

    Raises:
        UserError: if it is a file, or holds what replacing an export would delete.
        ValueError: if there is no such format.

    Example:

    >>> import tempfile
    >>> from keras_transformer.export import check_export_directory
    >>> check_export_directory(tempfile.mkdtemp())
    """
    check_choice("format", format, tuple(FORMATS))
    directory = pathlib.Path(directory)
    title, marker = FORMATS[format].title, FORMATS[format].marker
    if not directory.exists():
        return
    if not directory.is_dir():
        raise UserError(f"Expected a directory to export to but {str(directory)!r} is a file.")
    names = {path.name for path in directory.iterdir()}
    if names and not (directory / marker).is_file():
        raise UserError(
            f"{str(directory)!r} holds other files and no {title}: name a new directory, "
            "an empty one, or an earlier export."
        )
    foreign = sorted(names - FORMATS[format].entries)
    if foreign:
        more = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
        raise UserError(
            f"{str(directory)!r} holds {foreign[0]!r}{more}, which replacing the {title} there "
            "would delete: move it away, or name a new directory."
        )


def check_export_packages(format) -> None:
    """Raises unless all that an export needs is installed; to be known before a model is loaded.

    Args:
        format: as in `check_export_directory`.

    Raises:
        UserError: if a package is missing.
        ValueError: if there is no such format.

    Example:

    >>> from keras_transformer.export import check_export_packages
    >>> check_export_packages("saved_model")
    """
    check_choice("format", format, tuple(FORMATS))
    for package in FORMATS[format].packages:
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise UserError(
                f"An export as {format} needs {package}: pip install '.[{format}]' "
                "in the folder of keras_transformer's source"
            ) from error


@contextlib.contextmanager
def export_folder(directory, format):
    """Gives a new folder beside `directory` that replaces it if the block succeeds.

    Args:
        directory: as in `check_export_directory`, which is asked first.
        format: name of the format.

    Yields:
        `pathlib.Path` of an empty folder.

    Raises:
        UserError: if the directory holds what replacing it would delete.
    """
    check_export_directory(directory, format)
    with atomic_folder(directory) as aside:
        aside.mkdir()
        yield aside
