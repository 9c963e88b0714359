"""Model directories: config, weights, tokenizers and recipe, written together and read with checks.

If a process that writes is killed, the directory holds the old or the new model.
"""

import contextlib
import json
import logging
import os
import pathlib
from collections.abc import Iterator

from keras_transformer import __version__
from keras_transformer.checks import check_boolean
from keras_transformer.data.tokenizer_pair import TokenizerPair
from keras_transformer.decoding import search_from_dict
from keras_transformer.errors import UserError, one_line
from keras_transformer.files import atomic_files, current_file, finish_replacing, read_json
from keras_transformer.inference.tasks import get_task
from keras_transformer.layers.composite_layer import quantized_parts
from keras_transformer.layouts import (
    CONFIG_FILE,
    IN_SAVED_MODEL,
    RECIPE_FILE,
    WEIGHTS_FILE,
    checked_directory,
    find_config,
)
from keras_transformer.models import (
    TrainingRecipe,
    Transformer,
    TransformerConfig,
    processor,
    saved_weights,
    weight_files,
)
from keras_transformer.settings.transformer_config import count_parameters

FORMAT = 1
_LOGGER = logging.getLogger(__name__)


@contextlib.contextmanager
def reading_values(path: str | os.PathLike) -> Iterator[None]:
    """Turns errors inside a `with` block into a `UserError` that begins with the path of a file."""
    try:
        yield
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise UserError(f"{path}: {one_line(error)}") from error


def read_config(directory: str | os.PathLike) -> dict:
    """Returns `config.json`, with objects for model and search; other entries stay as they are."""
    path = find_config(directory)
    config = read_json(path)
    config.setdefault("task", "translation")
    config.setdefault("shared_tokenizer", True)
    with reading_values(path):
        if (number := config.get("format")) != FORMAT:
            rule = f"this version reads model directories of format {FORMAT}"
            raise ValueError(f"{rule}. Received: format={number!r}")
        if not isinstance(config.get("model"), dict):
            raise ValueError("the entry 'model' is missing or is not an object.")
        get_task(config["task"])
        check_boolean("shared_tokenizer", config["shared_tokenizer"])
        config["model"] = TransformerConfig.from_dict(config["model"])
        search = config.get("search")
        config["search"] = None if search is None else search_from_dict(search)
    return config


def limits_of(config: dict) -> dict[str, int]:
    """Returns the limits of lengths in the config of a model directory."""
    return {name: config[name] for name in ("extra_length", "max_source_length") if name in config}


def read_recipe(directory: str | os.PathLike):
    """Returns the `TrainingRecipe` of a model directory, or None if it has none."""
    path = current_file(directory, RECIPE_FILE)
    if not path.exists():
        return None
    content = read_json(path)
    with reading_values(path):
        return TrainingRecipe.from_dict(content)


def check_sizes(directory: str | os.PathLike, config: dict) -> None:
    """Raises a `UserError` unless the weights of a model directory fit its config.

    Call it before the model is built: that of a damaged config may not fit into memory.
    """
    path, count = _weights_path(directory, config), weight_files.count_stored_parameters
    if "precision" in config:
        count = saved_weights.count_saved_model_parameters
    elif not path.is_file():
        raise UserError(f"{path} is missing.")
    stored, expected = count(path), count_parameters(config["model"])
    if stored != expected:
        raise UserError(
            f"{path} does not fit the model in {CONFIG_FILE}: "
            f"it stores {stored:,} parameters, the model has {expected:,}."
        )


def read_model(directory: str | os.PathLike, config: dict, dtype=None):
    """Builds the `Transformer` of a model directory from its config, and loads its weights."""
    check_sizes(directory, config)
    with reading_values(repr(str(directory))):
        dtype = config.get("precision", dtype)
        model = Transformer(config["model"], dtype=dtype, initialize=False)
    load = weight_files.load_weights_only
    if "precision" in config:
        load = saved_weights.load_saved_model_weights
    load(model, _weights_path(directory, config))
    return model


def _weights_path(directory, config):
    if "precision" not in config:
        return current_file(directory, WEIGHTS_FILE)
    root = pathlib.Path(os.path.abspath(directory))
    if root.parts[-2:] != pathlib.PurePath(IN_SAVED_MODEL).parts:
        raise UserError(
            f"{str(directory)!r} has no weights of its own: it belongs in a SavedModel."
        )
    return root.parents[1] / "variables" / "variables"


def read_tokenizers(directory: str | os.PathLike, config: dict) -> TokenizerPair:
    """Loads the tokenizers of a model directory and checks that they fit the model."""
    tokenizers = TokenizerPair.load(directory, config["shared_tokenizer"])
    sizes = config["model"].vocab_size, config["model"].output_vocab_size
    for (name, tokenizer), size in zip(tokenizers.by_name().items(), sizes, strict=False):
        if tokenizer.vocab_size != size:
            raise UserError(
                f"{pathlib.Path(directory) / name}.*: the tokenizer has {tokenizer.vocab_size} "
                f"pieces, the model in {CONFIG_FILE} has {size}."
            )
    return tokenizers


def check_same_vocabularies(directories, tokenizers):
    """Raises an error that names two directories whose vocabularies or languages differ, if any."""
    first, *others = map(_vocabularies, tokenizers)
    for directory, other in zip(directories[1:], others, strict=True):
        for side, pieces in first.items():
            if pieces != other[side]:
                raise UserError(
                    f"Models answer together if they have the same vocabulary. Received: "
                    f"{str(directories[0])!r} and {str(directory)!r}, whose {side} vocabularies, "
                    f"of {len(pieces):,} and {len(other[side]):,} pieces, differ"
                )
    first, *others = (f"{pair.source.language} to {pair.of_target.language}" for pair in tokenizers)
    for directory, other in zip(directories[1:], others, strict=True):
        if other != first:
            raise UserError(
                "Models answer together if they have the same languages. Received: "
                f"{str(directories[0])!r} from {first} and {str(directory)!r} from {other}"
            )


def _vocabularies(pair):
    sides = {"source": pair.source, "target": pair.of_target}
    return {side: one.pieces(range(one.vocab_size)) for side, one in sides.items()}


def write_model_directory(
    directory: str | os.PathLike, model, tokenizers: TokenizerPair, settings: dict, recipe=None
) -> pathlib.Path:
    """Writes a model directory in place of an earlier model; other files in the folder stay.

    `settings` are further entries of `config.json`; with a `"precision"`, the directory belongs in
    a SavedModel, which has the weights.
    """
    directory, has_weights = checked_directory(directory), "precision" not in settings
    if has_weights and isinstance(model, Transformer) and quantized_parts(model):
        raise UserError(
            "A model directory cannot hold a quantized model: save it with "
            "`translator.model.save('model.keras')`, or export it."
        )
    config = {
        "format": FORMAT,
        "library_version": __version__,
        "model": model.config.to_dict(),
        "shared_tokenizer": tokenizers.is_shared,
        **settings,
    }
    if isinstance(recipe, dict):
        recipe = TrainingRecipe.from_dict(recipe)
    finish_replacing(directory)
    # Files of an earlier model that the new one does not replace.
    obsolete = tokenizers.obsolete_files(directory)
    path = directory / RECIPE_FILE
    if recipe is None and path.is_file():
        read_recipe(directory)  # Another file of this name is never deleted: it raises an error.
        obsolete.append(path)
    with atomic_files(directory, obsolete) as aside:
        if has_weights:
            weight_files.save_weights_only(model, aside / WEIGHTS_FILE)
        tokenizers.save(aside)
        contents = {CONFIG_FILE: config}
        if recipe is not None:
            contents[RECIPE_FILE] = recipe.to_dict()
        for name, content in contents.items():
            text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
            (aside / name).write_text(text, encoding="utf-8")
    return directory


def choose_precision(dtype: str | None) -> str | None:
    """Returns the dtype; for `"auto"`, the faster one of bfloat16 and float32, which it logs."""
    if dtype != "auto":
        return dtype
    chosen = "bfloat16" if processor.has_fast_bfloat16() else "float32"
    _LOGGER.info("Computing in %s.", chosen)
    return chosen
