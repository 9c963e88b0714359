"""What `train` decides before it reads the text: resume or not, tokenizers, the model's config."""

from collections.abc import Mapping
from pathlib import Path

from keras_transformer.data import SentencePieceTokenizer, SubwordTokenizer
from keras_transformer.data.tokenizer_pair import TokenizerPair
from keras_transformer.errors import UserError
from keras_transformer.files import remove
from keras_transformer.inference.model_directory import CONFIG_FILE, RECIPE_FILE, WEIGHTS_FILE
from keras_transformer.models import Preset, TrainingRecipe, TransformerConfig
from keras_transformer.settings.training_settings import SETTINGS_FILE, read_settings_file
from keras_transformer.training.checkpoints import Checkpoints
from keras_transformer.training.divergence import DIVERGED_BATCH_FILE

CHECKPOINT_FOLDER = "checkpoints"
HISTORY_FILE = "history.csv"


def check_lengths(config: TransformerConfig, recipe: TrainingRecipe) -> None:
    """Raises a `UserError` if a training sentence could be longer than the table of positions."""
    # Equal is enough: the recipe counts EOS, and the decoder's input has BOS in its place.
    if config.max_length is not None and recipe.max_length > config.max_length:
        raise UserError(
            f"The model has {config.max_length} positions, fewer than the {recipe.max_length} "
            "tokens of the longest training sentence (`max_length` of the recipe). Received: "
            f"max_length={recipe.max_length!r} with a config of max_length={config.max_length!r}"
        )


def check_output(output: Path) -> bool:
    """Returns whether `output` holds a training to resume; raises if it holds something else.

    A training that ended before its first checkpoint is not resumed but started over.
    """
    if not (output / SETTINGS_FILE).exists():
        kept, missing = _files_to_write(output), SETTINGS_FILE
    elif Checkpoints(output / CHECKPOINT_FOLDER).exists():
        return True
    else:
        read_settings_file(output)  # raises if the file is of another program
        # These two are written when a training is finished.
        kept = [name for name in (CONFIG_FILE, WEIGHTS_FILE) if (output / name).exists()]
        missing = f"{CHECKPOINT_FOLDER}/{Checkpoints(output).state_path.name}"
    if kept:
        raise UserError(
            f"{str(output)!r} holds {', '.join(kept)} without {missing}: it cannot be trained "
            "further, and nothing in it is overwritten. Choose another output directory."
        )
    return False


def _files_to_write(output: Path) -> list[str]:
    """Returns the names in a folder that a training would write."""
    names = [CONFIG_FILE, WEIGHTS_FILE, RECIPE_FILE, HISTORY_FILE, CHECKPOINT_FOLDER]
    names += [DIVERGED_BATCH_FILE, *(path.name for path in _tokenizer_paths(output))]
    return [name for name in names if (output / name).exists()]


def _tokenizer_paths(output: Path) -> list[Path]:
    return sorted(
        path
        for name in ("tokenizer", "source_tokenizer", "target_tokenizer")
        for path in output.glob(f"{name}.*")
        if path.suffix in (SentencePieceTokenizer.suffix, SubwordTokenizer.suffix)
    )


def start_directory(
    output: Path, tokenizers: TokenizerPair, settings, fingerprint: Mapping
) -> None:
    """Writes what a new training begins with, and removes what one without a checkpoint left."""
    remove(output / CHECKPOINT_FOLDER)
    for path in _tokenizer_paths(output):
        path.unlink()
    # First, since it tells whose the other files are.
    settings.save(output, fingerprint)
    tokenizers.save(output)


def choose_tokenizers(
    output: Path, resumes: bool, corpus, settings, task, source, target, report
) -> TokenizerPair:
    """Returns the tokenizers given, or those of the training resumed, or learns new ones."""
    if target is not None and source is None:
        raise ValueError("`target_tokenizer` needs `source_tokenizer`. Received: None")
    if source is not None and (target is not None or task.shares_a_given_tokenizer):
        return TokenizerPair(source, target)
    if not resumes:
        return task.learn_tokenizers(corpus, settings, source, report)
    saved = TokenizerPair.load(output, settings.shared_vocabulary)
    return TokenizerPair(source or saved.source, saved.target)


def make_config(
    preset: Preset, settings, vocab_size: int, target_vocab_size: int | None = None
) -> TransformerConfig:
    """Returns the preset's config with the changes of the settings and the vocabularies' sizes."""
    return TransformerConfig.from_dict(
        {
            **preset.config,
            **settings.model,
            "vocab_size": vocab_size,
            "target_vocab_size": target_vocab_size,
        }
    )
