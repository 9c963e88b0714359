"""`TranslationSettings`: the settings of a training that only translation has."""

from typing import Annotated, Literal, get_args

from keras_transformer.settings.base import (
    MAY_CHANGE,
    Count,
    CountOrZero,
    Settings,
    settings_dataclass,
)

BleuTokenizer = Literal["13a", "intl", "char", "zh", "ja-mecab", "ko-mecab", "none"]
BLEU_TOKENIZERS = get_args(BleuTokenizer)


@settings_dataclass
class TranslationSettings(Settings):
    """The `task_settings` of `TrainingSettings` for translation.

    Args:
        bleu_every: Translate the validation text at every Nth validation; 0 never does.
        bleu_beam_size: Number of beams of these translations; 1 is greedy and fast.
        bleu_lowercase: Ignore case in this BLEU.
        bleu_tokenize: SacreBLEU's tokenizer; None for 13a, or none for `subword` text.
    """

    bleu_every: Annotated[CountOrZero, MAY_CHANGE] = 1
    bleu_beam_size: Annotated[Count, MAY_CHANGE] = 1
    bleu_lowercase: Annotated[bool, MAY_CHANGE] = False
    bleu_tokenize: Annotated[BleuTokenizer | None, MAY_CHANGE] = None
