"""Model directories: config, weights, tokenizer and recipe, each checked when it is read."""

import json
import os
import pathlib
import shutil
import uuid

from keras_transformer.decoding import search_from_dict, search_to_dict
from keras_transformer.errors import UserError

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.weights.h5"
RECIPE_FILE = "recipe.json"
FORMAT = 1

__all__ = ["load_weights", "one_line", "read_config", "read_json", "read_model",
           "read_tokenizers", "search_from_dict", "search_to_dict", "write_model_directory"]


def write_model_directory(
    directory, *, model, source_tokenizer, target_tokenizer=None, settings, recipe=None
) -> pathlib.Path:
    """Writes a model directory: all of it aside first, then renamed into place.

    Args:
        directory: where to. Other files that are there already are left alone.
        model: a `Transformer`.
        source_tokenizer: its tokenizer.
        target_tokenizer: the target's, or None if the two languages share one.
        settings: `dict` of further entries of `config.json`.
        recipe: a `TrainingRecipe` or its dict, or None.

    Returns:
        `pathlib.Path`: the directory.
    """
    import keras_transformer
    from keras_transformer.data import save_tokenizer

    directory = pathlib.Path(directory)
    if directory.exists() and not directory.is_dir():
        raise UserError(f"Expected a model directory but {str(directory)!r} is a file.")
    config = {
        "format": FORMAT,
        "library_version": getattr(keras_transformer, "__version__", None),
        "model": model.config.to_dict(),
        "shared_tokenizer": target_tokenizer is None,
        **settings,
    }
    # Beside a new directory (one rename makes it appear), inside an existing one.
    exists = directory.is_dir()
    parent = directory if exists else directory.parent
    aside = parent / f".writing-{uuid.uuid4().hex[:12]}"
    try:
        aside.mkdir(parents=True)
        _save_weights(model, aside / WEIGHTS_FILE)
        for name, tokenizer in _named_tokenizers(source_tokenizer, target_tokenizer).items():
            save_tokenizer(tokenizer, aside, name)
        if recipe is not None:
            recipe = recipe if isinstance(recipe, dict) else recipe.to_dict()
            _write_json(aside / RECIPE_FILE, recipe)
        _write_json(aside / CONFIG_FILE, config)
        if exists:
            # The config comes last: with an old config the new weights are recognised as such.
            for path in sorted(aside.iterdir(), key=lambda path: path.name == CONFIG_FILE):
                os.replace(path, directory / path.name)
            aside.rmdir()
        else:
            os.rename(aside, directory)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    return directory


def _save_weights(model, path: pathlib.Path) -> None:
    # Keras would write the optimizer's variables of a compiled model as well.
    optimizer = getattr(model, "optimizer", None)
    model.optimizer = None
    try:
        model.save_weights(path)
    finally:
        model.optimizer = optimizer


def _named_tokenizers(source_tokenizer, target_tokenizer) -> dict:
    if target_tokenizer is None:
        return {"tokenizer": source_tokenizer}
    return {"source_tokenizer": source_tokenizer, "target_tokenizer": target_tokenizer}


def _write_json(path: pathlib.Path, content: dict) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


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
        `dict`, whose `"model"` is a `TransformerConfig` and whose `"search"` is a search or
        None.

    Raises:
        UserError: if the directory or the file is missing, damaged, or of another format.
    """
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
    try:
        config["model"] = TransformerConfig.from_dict(config["model"])
        search = config.get("search")
        config["search"] = None if search is None else search_from_dict(search)
    except (ValueError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: {one_line(error)}") from error
    return config


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
