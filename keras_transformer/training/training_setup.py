"""What `train` decides before it reads the text: resume or not, tokenizers, the model's config."""

from pathlib import Path

from keras_transformer.errors import UserError
from keras_transformer.models import Preset, TrainingRecipe, TransformerConfig
from keras_transformer.training.settings import SETTINGS_FILE
from keras_transformer.training.training_data import Tokenizers, load_tokenizers

CHECKPOINT_FOLDER = "checkpoints"


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
    """Returns whether `output` holds a training to resume; raises if it holds something else."""
    if output.exists() and not output.is_dir():
        raise UserError(f"The output must be a directory. Received: output={str(output)!r}")
    if (output / SETTINGS_FILE).exists():
        return True
    if (output / "config.json").exists() or (output / CHECKPOINT_FOLDER).exists():
        raise UserError(
            f"{str(output)!r} holds a model without {SETTINGS_FILE}, which cannot be trained "
            "further. Choose another output directory."
        )
    return False


def choose_tokenizers(
    output: Path, resumes: bool, corpus, settings, task, source, target, report
) -> Tokenizers:
    """Returns the tokenizers given, or those of the training resumed, or learns new ones."""
    if target is not None and source is None:
        raise ValueError("`target_tokenizer` needs `source_tokenizer`. Received: None")
    if source is not None and (target is not None or task.shares_a_given_tokenizer):
        return Tokenizers(source, target)
    if not resumes:
        return task.learn_tokenizers(corpus, settings, source, report)
    saved = load_tokenizers(output, settings.shared_vocabulary)
    return Tokenizers(source or saved.source, saved.target)


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
