"""Model directories are written: aside, renamed into place, nothing of an earlier model left."""

import json
import pathlib

from keras_transformer.errors import UserError
from keras_transformer.files import atomic_files, finish_replacing
from keras_transformer.inference.model_directory import (
    CONFIG_FILE,
    FORMAT,
    RECIPE_FILE,
    WEIGHTS_FILE,
    read_recipe,
)


def write_model_directory(
    directory, *, model, source_tokenizer, target_tokenizer=None, settings, recipe=None
) -> pathlib.Path:
    """Writes a model directory: all of it aside first, then renamed into place.

    A process that is killed leaves the old model or the new one, for `read_config` completes what
    was complete aside.

    Args:
        directory: where to. Of a model directory that is there already nothing remains; files of
            other names are left alone.
        model: a `Transformer`.
        source_tokenizer: its tokenizer.
        target_tokenizer: the target's, or None if the two languages share one.
        settings: `dict` of further entries of `config.json`.
        recipe: a `TrainingRecipe` or its dict, or None.

    Returns:
        `pathlib.Path`: the directory.

    Raises:
        UserError: if the directory is a file, or has a file that would be read as a part of the
            model and is something else.
        ValueError: if the recipe is a dict with settings that a `TrainingRecipe` does not have.
    """
    import keras_transformer
    from keras_transformer.data import save_tokenizer
    from keras_transformer.models import TrainingRecipe
    from keras_transformer.models.weight_files import save_weights_only

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
    if isinstance(recipe, dict):  # what could not be read back is not written
        recipe = TrainingRecipe.from_dict(recipe)
    tokenizers = _named_tokenizers(source_tokenizer, target_tokenizer)
    finish_replacing(directory)
    obsolete = _obsolete_files(directory, tokenizers, recipe)
    with atomic_files(directory, obsolete) as aside:
        save_weights_only(model, aside / WEIGHTS_FILE)
        for name, tokenizer in tokenizers.items():
            save_tokenizer(tokenizer, aside, name)
        if recipe is not None:
            _write_json(aside / RECIPE_FILE, recipe.to_dict())
        _write_json(aside / CONFIG_FILE, config)
    return directory


def _obsolete_files(directory: pathlib.Path, tokenizers: dict, recipe) -> list[pathlib.Path]:
    """Files of an earlier model that the new one does not replace; checked to be just that."""
    from keras_transformer.data.tokenizers import other_kind_files, tokenizer_files

    obsolete = []
    for name in ("tokenizer", "source_tokenizer", "target_tokenizer"):
        if name in tokenizers:
            obsolete += other_kind_files(tokenizers[name], directory, name)
        else:  # not read with the new config: what is no tokenizer can stay
            obsolete += tokenizer_files(directory, name)
    path = directory / RECIPE_FILE
    if recipe is None and path.is_file():
        try:
            read_recipe(directory)
        except UserError as error:
            raise UserError(
                f"{path} is in the way and no training recipe that can be replaced: move it "
                "away, or name another directory."
            ) from error
        obsolete.append(path)
    return obsolete


def _named_tokenizers(source_tokenizer, target_tokenizer) -> dict:
    if target_tokenizer is None:
        return {"tokenizer": source_tokenizer}
    return {"source_tokenizer": source_tokenizer, "target_tokenizer": target_tokenizer}


def _write_json(path: pathlib.Path, content: dict) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
