"""Model directories are read: config, weights, tokenizer and recipe, each of them checked."""

import pathlib

from keras_transformer.decoding import search_from_dict
from keras_transformer.errors import UserError, one_line
from keras_transformer.files import finish_replacing, read_json

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.weights.h5"
RECIPE_FILE = "recipe.json"
FORMAT = 1
# What a model directory is for, and what loads it. A config without a task is a translator's.
TASKS = {"translation": "Translator", "parsing": "Parser"}


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
    from keras_transformer.inference.sentence_profile import SentenceProfile
    from keras_transformer.layers.checks import check_boolean, check_choice
    from keras_transformer.models import TransformerConfig
    from keras_transformer.parsing.linearization import Linearization

    directory = pathlib.Path(directory)
    if not directory.exists():
        raise UserError(f"Model directory not found: {str(directory)!r}.")
    if not directory.is_dir():
        raise UserError(f"Expected a model directory but {str(directory)!r} is a file.")
    try:
        finish_replacing(directory)
    except OSError as error:
        raise UserError(
            f"{str(directory)!r} was being saved when the process was killed, and the rest cannot "
            f"be done: {error.strerror}. Load it once where it can be written."
        ) from error
    path = directory / CONFIG_FILE
    if not path.exists():
        raise UserError(f"{str(directory)!r} is no model directory: {path} is missing.")
    config = read_json(path)
    config.setdefault("task", "translation")
    config.setdefault("shared_tokenizer", True)
    try:
        if config.get("format") != FORMAT:
            raise ValueError(
                f"this version reads model directories of format {FORMAT}. "
                f"Received: format={config.get('format')!r}"
            )
        if not isinstance(config.get("model"), dict):
            raise ValueError("the entry 'model' is missing, or no object.")
        check_choice("task", config["task"], tuple(TASKS))
        check_boolean("shared_tokenizer", config["shared_tokenizer"])
        config["model"] = TransformerConfig.from_dict(config["model"])
        search = config.get("search")
        config["search"] = None if search is None else search_from_dict(search)
        if "linearization" in config:
            config["linearization"] = Linearization.from_dict(config["linearization"])
        if config.get("sentence_profile") is not None:  # earlier versions wrote none
            config["sentence_profile"] = SentenceProfile.from_dict(config["sentence_profile"])
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
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
        UserError: if the weights are missing, damaged, not finite, or those of another model.
    """
    from keras_transformer.models import Transformer
    from keras_transformer.models.weight_files import count_stored_parameters, load_weights_only
    from keras_transformer.settings.transformer_config import count_parameters

    path = pathlib.Path(directory) / WEIGHTS_FILE
    if not path.is_file():
        raise UserError(f"{path} is missing.")
    # Compared before the model is made: a damaged config may ask for more than there is memory.
    stored, expected = count_stored_parameters(path), count_parameters(config["model"])
    if stored != expected:
        raise UserError(
            f"{path} does not fit the model in {CONFIG_FILE}: "
            f"it stores {stored:,} parameters, the model has {expected:,}."
        )
    try:
        model = Transformer(config["model"], dtype=dtype)
    except ValueError as error:
        raise UserError(f"{str(directory)!r}: {one_line(error)}") from error
    load_weights_only(model, path)
    return model


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
    shared = config["shared_tokenizer"]
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
