"""The result of a training."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class TrainingResult:
    """The result of a call of `train`.

    Attributes:
        translator: `Translator` with the final weights, as saved in the directory; None for a
            parser.
        steps: updates done, over all runs.
        epochs: passes over the data, over all runs.
        minutes: minutes of training, over all runs.
        bleu: BLEU of the final weights on the validation set, or None.
        valid_loss: cross-entropy per token of the final weights there, or None.
        history: rows of `history.csv`.
        parser: likewise the `Parser`, if the task was parsing.
        f1: F1 of its parses of the validation set, or None.

    Example:

    >>> from keras_transformer.training import TrainingResult
    >>> result = TrainingResult(
    ...     translator=None, steps=100, epochs=1.5, minutes=2.0, bleu=31.4, valid_loss=1.8,
    ...     history=[],
    ... )
    >>> result.bleu
    31.4
    """

    translator: object | None
    steps: int
    epochs: float
    minutes: float
    bleu: float | None
    valid_loss: float | None
    history: list[dict[str, str]]
    parser: object | None = None
    f1: float | None = None
