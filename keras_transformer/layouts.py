"""The names of all files that the library writes, and the layouts of the folders they are in."""

import dataclasses
import fnmatch
import os
import pathlib
from collections.abc import Set

from keras_transformer.errors import UserError
from keras_transformer.files import current_file

# Tokenizers, in every folder: one file for both languages, or one for each.
SHARED_TOKENIZER, SEPARATE_TOKENIZERS = "tokenizer", ("source_tokenizer", "target_tokenizer")
TOKENIZER_SUFFIXES = (".model", ".txt", ".json")
TOKENIZER_FILES = frozenset(
    f"{name}{suffix}"
    for name in (SHARED_TOKENIZER, *SEPARATE_TOKENIZERS)
    for suffix in TOKENIZER_SUFFIXES
)

# A model directory.
CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.weights.h5"
RECIPE_FILE = "recipe.json"
SHORTLIST_FILE = "shortlist.npz"
VALID_FILES = ("valid.source", "valid.target")  # pairs that were held out

# Other files that a training writes into its model directory.
SETTINGS_FILE = "training.json"
HISTORY_FILE = "history.csv"
LARGEST_HISTORY = 2**22  # bytes, for some 30,000 evaluations
CHECKPOINT_FOLDER = "checkpoints"
DIVERGED_BATCH_FILE = "diverged-batch.npz"
LOCK_FILE = ".training.lock"

# A prepared corpus.
CORPUS_ARRAYS = ("source_ids", "source_offsets", "target_ids", "target_offsets")
DESCRIPTION_FILE = "prepared.json"
PART_FILE = "part.json"
VALID_TEXT_FILE = "valid.jsonl"

# Exports. A SavedModel has a folder that is a model directory without weights.
SAVED_MODEL_FILE = "saved_model.pb"
IN_SAVED_MODEL = "assets.extra/model"
WARMUP_FILE = "assets.extra/tf_serving_warmup_requests"
ONNX_WEIGHTS_FILE = "weights.bin"
LITERT_FILE = "model.tflite"


@dataclasses.dataclass(frozen=True)
class Layout:
    """The files of a folder that a command writes and may replace."""

    title: str  # name in messages
    marker: str  # the file that every such folder has
    entries: Set[str]  # its other files; `*` stands for anything
    # A text that our marker contains, where other programs write files of this name.
    marker_text: str = ""
    is_replaced: bool = True  # whether the command replaces the whole folder

    def check_output(self, directory: str | os.PathLike) -> None:
        """Raises a `UserError` unless a folder is missing, empty, or an earlier result to replace.

        This is the rule of all commands that write a folder, except `train`, which resumes.
        """
        directory = pathlib.Path(directory)
        if directory.exists() and not directory.is_dir():
            raise UserError(f"The output must be a folder but {str(directory)!r} is a file.")
        stays = directory.exists() and (directory.samefile(".") or os.path.ismount(directory))
        if self.is_replaced and stays:
            rule = "The output folder is replaced, so it must not be the current one or a mount"
            raise UserError(f"{rule} point: give a folder in it. Received: {str(directory)!r}")
        files = (path for path in directory.rglob("*") if path.is_symlink() or not path.is_dir())
        names = sorted(path.relative_to(directory).as_posix() for path in files)
        is_earlier_result = self.marker in names and self._is_ours(directory / self.marker)
        allowed = {self.marker, *self.entries} if is_earlier_result else ()
        foreign = [name for name in names if not any(fnmatch.fnmatchcase(name, e) for e in allowed)]
        if foreign:
            more = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
            rule = "An output folder must be new, empty, or an earlier"
            rule += f" {self.title} without other files"
            raise UserError(f"{rule}. Received: {str(directory)!r} with {foreign[0]!r}{more}")

    def _is_ours(self, marker):
        # Without a text, the marker may be a large binary file.
        return not self.marker_text or self.marker_text in marker.read_text("utf-8", "replace")


IMPORTED_MODEL = Layout(
    "imported model",
    CONFIG_FILE,
    TOKENIZER_FILES | {WEIGHTS_FILE},
    marker_text='"origin": {',
    is_replaced=False,
)
# In the card of a model that `export --format transformers` wrote.
TRANSFORMERS_CARD = "A translator that `keras-transformer export --format transformers` wrote."
_SPLITS = ("train", "valid")
_DIGITS = "[0-9]" * 5
PREPARED_CORPUS = Layout(
    "prepared corpus",
    DESCRIPTION_FILE,
    TOKENIZER_FILES
    | {VALID_TEXT_FILE}
    | {f"{split}/{name}.npy" for split in _SPLITS for name in CORPUS_ARRAYS}
    | {f"{split}-{_DIGITS}-of-{_DIGITS}.tfrecord" for split in _SPLITS},  # before 2.0
)
EXPORTS = {
    "saved_model": Layout(
        "SavedModel",
        SAVED_MODEL_FILE,
        {"variables/variables.*", "fingerprint.pb", "keras_metadata.pb", WARMUP_FILE}
        | {f"{IN_SAVED_MODEL}/{name}" for name in (CONFIG_FILE, RECIPE_FILE, *TOKENIZER_FILES)},
    ),
    "ctranslate2": Layout(
        "CTranslate2 model",
        "model.bin",
        TOKENIZER_FILES
        | {"config.json"}
        | {f"{side}_vocabulary.json" for side in ("shared", "source", "target")},
    ),
    "onnx": Layout(
        "ONNX export", "encode.onnx", TOKENIZER_FILES | {"decode.onnx", ONNX_WEIGHTS_FILE}
    ),
    "litert": Layout("LiteRT export", LITERT_FILE, TOKENIZER_FILES),
    "transformers": Layout(
        "transformers export",
        "README.md",
        {f"{name}.json" for name in ("vocab", "target_vocab", "tokenizer_config")}
        | {"config.json", "generation_config.json", "model.safetensors"}
        | {"source.spm", "target.spm"},
        marker_text=TRANSFORMERS_CARD,
    ),
}


def checked_directory(directory: str | os.PathLike) -> pathlib.Path:
    """Returns the path of a model directory; raises a `UserError` if it is a file."""
    directory = pathlib.Path(directory)
    if directory.exists() and not directory.is_dir():
        raise UserError(f"Expected a model directory but {str(directory)!r} is a file.")
    return directory


def find_config(directory: str | os.PathLike) -> pathlib.Path:
    """Returns the path of a model directory's config; raises a `UserError` if there is none.

    Commands call it before they import Keras, which takes seconds.
    """
    directory = checked_directory(directory)
    if not directory.exists():
        raise UserError(f"Model directory not found: {str(directory)!r}.")
    path = current_file(directory, CONFIG_FILE)
    if not path.exists():
        reason = f"{path} is missing."
        if (directory / SETTINGS_FILE).exists():
            reason += " A training writes it at its end: run the same training again to finish it."
        elif (directory / SAVED_MODEL_FILE).exists():
            reason += " It is a SavedModel: give the model directory that it was exported from."
        raise UserError(f"{str(directory)!r} is not a model directory: {reason}")
    return path
