"""Model directories are read: config, weights, tokenizer and recipe, each of them checked."""

import json
import pathlib

from keras_transformer.decoding import search_from_dict, search_to_dict
from keras_transformer.errors import UserError

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.weights.h5"
RECIPE_FILE = "recipe.json"
FORMAT = 1
# What a model directory is for, and what loads it. A config without a task is a translator's.
TASKS = {"translation": "Translator", "parsing": "Parser"}

__all__ = [
    "load_weights",
    "one_line",
    "read_config",
    "read_json",
    "read_model",
    "read_recipe",
    "read_tokenizers",
    "search_from_dict",
    "search_to_dict",
]


def read_json(path: pathlib.Path) -> dict:
    """Reads a JSON object of a model directory.

    Raises:
        UserError: if the file is missing, cut short or something else than an object.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"{path} is missing.") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is no complete JSON file: {one_line(error)}") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} must hold a JSON object. Received: {type(content).__name__}")
    return content


def read_config(directory) -> dict:
    """Reads and checks `config.json` of a model directory.

    Args:
        directory: the model directory.

    Returns:
        `dict`, whose `"model"` is a `TransformerConfig`, whose `"search"` is a search or None,
        whose `"task"` is one of `TASKS`, and whose `"linearization"`, if there is one, is a
        `Linearization`.

    Raises:
        UserError: if the directory or the file is missing, damaged, or of another format.
    """
    from keras_transformer.data import Linearization
    from keras_transformer.models import TransformerConfig

    directory = pathlib.Path(directory)
    if not directory.exists():
        raise UserError(f"Model directory not found: {str(directory)!r}.")
    if not directory.is_dir():
        raise UserError(f"Expected a model directory but {str(directory)!r} is a file.")
    path = directory / CONFIG_FILE
    if not path.exists():
        raise UserError(f"{str(directory)!r} is no model directory: {path} is missing.")
    config = read_json(path)
    if config.get("format") != FORMAT:
        raise UserError(
            f"{path}: this version reads model directories of format {FORMAT}. "
            f"Received: format={config.get('format')!r}"
        )
    if not isinstance(config.get("model"), dict):
        raise UserError(f"{path}: the entry 'model' is missing.")
    if config.setdefault("task", "translation") not in TASKS:
        raise UserError(
            f"{path}: the task must be one of {list(TASKS)}. Received: task={config['task']!r}"
        )
    try:
        config["model"] = TransformerConfig.from_dict(config["model"])
        search = config.get("search")
        config["search"] = None if search is None else search_from_dict(search)
        if "linearization" in config:
            config["linearization"] = Linearization.from_dict(config["linearization"])
    except (ValueError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: {one_line(error)}") from error
    return config


def read_recipe(directory):
    """Reads the recipe of a model directory.

    Args:
        directory: the model directory.

    Returns:
        A `TrainingRecipe`, or None if the directory has none.

    Raises:
        UserError: if the file is damaged.
    """
    from keras_transformer.models import TrainingRecipe

    path = pathlib.Path(directory) / RECIPE_FILE
    if not path.exists():
        return None
    try:
        return TrainingRecipe.from_dict(read_json(path))
    except UserError:
        raise
    except (ValueError, TypeError) as error:
        raise UserError(f"{path}: {one_line(error)}") from error


def read_model(directory, config: dict, dtype=None):
    """Builds the model of a model directory and loads its weights.

    Args:
        directory: the model directory.
        config: what `read_config` returned.
        dtype: dtype or dtype policy of the model; None for the global one.

    Returns:
        A `Transformer`.

    Raises:
        UserError: if the weights are missing, damaged, or those of another model.
    """
    from keras_transformer.models import Transformer

    path = pathlib.Path(directory) / WEIGHTS_FILE
    if not path.is_file():
        raise UserError(f"{path} is missing.")
    model = Transformer(config["model"], dtype=dtype)
    load_weights(model, path)
    return model


def load_weights(model, path) -> None:
    """Loads a weights file into a model, and checks that it is just this model's.

    Args:
        model: a built model.
        path: a `.weights.h5` file.

    Raises:
        UserError: if the file is damaged, or has other or more weights than the model.
    """
    import h5py

    try:
        with h5py.File(path, "r") as file:
            stored = _num_stored_parameters(file)
        expected = model.count_params()
        if stored != expected:
            raise UserError(
                f"{path} does not fit the model in {CONFIG_FILE}: "
                f"it stores {stored:,} parameters, the model has {expected:,}."
            )
        model.load_weights(path)
    except (OSError, KeyError, RuntimeError) as error:
        raise UserError(f"{path} is cut short or no weights file: {one_line(error)}") from error
    except UserError:
        raise
    except ValueError as error:
        raise UserError(
            f"{path} does not fit the model in {CONFIG_FILE}: {one_line(error)}"
        ) from error


def _num_stored_parameters(file) -> int:
    """Counts the weights in an HDF5 file, without states of random seeds and an optimizer."""
    sizes = []

    def visit(name, item):
        is_weight = "seed_generator" not in name and not name.startswith("optimizer/")
        if hasattr(item, "shape") and is_weight:
            sizes.append(item.size)

    file.visititems(visit)
    return sum(sizes)


def read_tokenizers(directory, config: dict) -> tuple:
    """Loads the tokenizers of a model directory and checks that they fit the model.

    Args:
        directory: the model directory.
        config: what `read_config` returned.

    Returns:
        `(source_tokenizer, target_tokenizer)`; the second is None if there is one for both.

    Raises:
        UserError: if a file is missing or damaged, or a vocabulary has another size than the
            model's.
    """
    from keras_transformer.data import load_tokenizer

    directory = pathlib.Path(directory)
    model_config = config["model"]
    shared = config.get("shared_tokenizer", True)
    sizes = {"tokenizer": model_config.vocab_size}
    if not shared:
        sizes = {
            "source_tokenizer": model_config.vocab_size,
            "target_tokenizer": model_config.output_vocab_size,
        }
    tokenizers = []
    for name, size in sizes.items():
        tokenizer = load_tokenizer(directory, name)
        if tokenizer.vocab_size != size:
            raise UserError(
                f"{directory / name}.*: the tokenizer has {tokenizer.vocab_size} pieces, "
                f"the model in {CONFIG_FILE} has {size}."
            )
        tokenizers.append(tokenizer)
    return (tokenizers[0], None) if shared else tuple(tokenizers)


def one_line(error: BaseException, limit: int = 300) -> str:
    """Returns an exception's message on one line, without line breaks, cut at `limit`."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= limit else text[:limit] + "..."
