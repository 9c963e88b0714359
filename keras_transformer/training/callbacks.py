"""Keras callbacks: BLEU on the development set, limits, history, what people watch."""

import csv
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import keras

from keras_transformer.files import atomic_write


class BleuOnDev(keras.callbacks.Callback):
    """Translates the development set at the end of epochs and logs its BLEU as `val_bleu`.

    Args:
        sources: list of `str`.
        references: list of `str`, raw text.
        source_tokenizer: tokenizer of the source.
        target_tokenizer: tokenizer of the target; None if they share one.
        search: search settings; None for greedy.
        every: int, epochs between translations.
        lowercase: compare in lower case.
        tokenize: name of a sacreBLEU tokenizer.

    Attributes:
        history: list of (epoch from 0, BLEU).
        hypotheses: the last translations.
        translator: `Translator` of the last evaluation, or None.

    Example:

    >>> from keras_transformer.data import SubwordTokenizer
    >>> from keras_transformer.training import BleuOnDev
    >>> callback = BleuOnDev(["a b"], ["b a"], SubwordTokenizer(["a", "b"]))
    >>> callback.history
    []
    """

    def __init__(
        self,
        sources: Sequence[str],
        references: Sequence[str],
        source_tokenizer,
        target_tokenizer=None,
        search=None,
        every: int = 1,
        lowercase: bool = False,
        tokenize: str = "13a",
    ):
        super().__init__()
        if len(sources) != len(references):
            raise ValueError(
                "`sources` and `references` must have the same number of lines. "
                f"Received: {len(sources)} and {len(references)}"
            )
        self.sources = list(sources)
        self.references = list(references)
        self.every = every
        self.history: list[tuple[int, float]] = []
        self.hypotheses: list[str] = []
        self._tokenizers = (source_tokenizer, target_tokenizer)
        self._search = search
        self._score_options = {"lowercase": lowercase, "tokenize": tokenize}
        self.translator = None

    def on_epoch_end(self, epoch, logs=None):
        if (epoch + 1) % self.every:
            return
        bleu = self.evaluate()
        self.history.append((epoch, bleu))
        if logs is not None:
            logs["val_bleu"] = bleu

    def evaluate(self, model=None) -> float:
        """Translates the development set now.

        Args:
            model: `Transformer`; None for the one that is trained.

        Returns:
            BLEU, 0 to 100.
        """
        from keras_transformer.decoding import GreedySearch
        from keras_transformer.evaluation import corpus_bleu
        from keras_transformer.translator import Translator

        model = model or getattr(self.model, "transformer", self.model)  # Of a `LossModel`.
        # One translator for all calls: its search is compiled once.
        if self.translator is None or self.translator.model is not model:
            search = self._search or GreedySearch()
            self.translator = Translator(model, *self._tokenizers, search=search)
        self.hypotheses = self.translator.translate(self.sources)
        return corpus_bleu(self.hypotheses, self.references, **self._score_options).score


class TimeLimit(keras.callbacks.Callback):
    """Stops the training after a number of minutes.

    Args:
        minutes: float, or None for no limit.
        used_minutes: float, minutes of earlier runs that count too.

    Example:

    >>> from keras_transformer.training import TimeLimit
    >>> TimeLimit(2.0, used_minutes=0.5).minutes
    2.0
    """

    def __init__(self, minutes: float | None, used_minutes: float = 0.0):
        super().__init__()
        self.minutes = minutes
        self._used = used_minutes
        self._start = time.monotonic()

    @property
    def elapsed_minutes(self) -> float:
        """Minutes since the start, and those of earlier runs."""
        return self._used + (time.monotonic() - self._start) / 60

    def on_train_batch_end(self, batch, logs=None):
        if self.minutes is not None and self.elapsed_minutes >= self.minutes:
            self.model.stop_training = True


class HistoryFile:
    """Rows of figures in a CSV file, one per evaluation, kept over interruptions.

    Args:
        path: the file.
        columns: names of the columns; the first is the step.

    Example:

    >>> import tempfile
    >>> from keras_transformer.training import HistoryFile
    >>> history = HistoryFile(tempfile.mkdtemp() + "/history.csv", ("step", "loss"))
    >>> history.append({"step": 10, "loss": 2.5})
    >>> history.rows()
    [{'step': '10', 'loss': '2.5'}]
    """

    def __init__(self, path, columns: Sequence[str]):
        self.path = Path(path)
        self.columns = tuple(columns)

    def rows(self) -> list[dict[str, str]]:
        """Returns the rows as text; a last row that was cut off is left out."""
        if not self.path.is_file():
            return []
        with open(self.path, newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        return [row for row in rows if None not in row.values() and None not in row]

    def start(self, step: int = 0) -> None:
        """Begins the file, or drops what came after the step that a training resumes from.

        Args:
            step: int, the last step to keep.
        """
        kept = [row for row in self.rows() if _is_until(row.get(self.columns[0]), step)]
        with atomic_write(self.path) as temporary:
            with open(temporary, "w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, self.columns, extrasaction="ignore", restval="")
                writer.writeheader()
                writer.writerows(kept)

    def append(self, row: Mapping[str, object]) -> None:
        """Adds a row; columns that it has not are empty.

        Args:
            row: values by column.
        """
        if not self.path.is_file():
            self.start()
        with open(self.path, "a", newline="", encoding="utf-8") as file:
            csv.DictWriter(file, self.columns, restval="").writerow(row)


def _is_until(text: str | None, step: int) -> bool:
    try:
        return int(text or "") <= step
    except ValueError:
        return False


class StepProgress(keras.callbacks.Callback):
    """Tells a function after every step how far the training is.

    Args:
        progress: called with (steps done, steps in all or None, note with loss and tokens/s).
        total: int or None, steps in all.
        tokens_per_step: float, target tokens of an average step, padding not counted.
        every: int, steps between looks at the loss.
        bleu: called for the last BLEU on the development set, a float or None.

    Example:

    >>> from keras_transformer.training import StepProgress
    >>> StepProgress(lambda done, total, note: None, total=100, tokens_per_step=3600.0).total
    100
    """

    def __init__(
        self,
        progress: Callable[[int, int | None, str], object],
        total: int | None,
        tokens_per_step: float,
        every: int = 10,
        bleu: Callable[[], float | None] | None = None,
    ):
        super().__init__()
        self.total = total
        self._progress = progress
        self._tokens_per_step = tokens_per_step
        self._every = every
        self._bleu = bleu
        self._note = ""
        self._window = (0, 0.0)

    def on_train_begin(self, logs=None):
        self._step = int(self.model.optimizer.iterations.numpy())
        self._window = (self._step, time.monotonic())

    def on_epoch_begin(self, epoch, logs=None):
        # The evaluation between two epochs is no training time.
        self._window = (self._step, time.monotonic())

    def on_train_batch_end(self, batch, logs=None):
        self._step += 1
        first, start = self._window
        if (self._step - first) % self._every == 0:
            speed = (self._step - first) * self._tokens_per_step / (time.monotonic() - start)
            loss = (logs or {}).get("loss")
            self._note = f"loss {float(loss):.3f}  " if loss is not None else ""
            self._note += f"{speed:,.0f} tokens/s"
            bleu = None if self._bleu is None else self._bleu()
            self._note += "" if bleu is None else f"  BLEU {bleu:.2f}"
        self._progress(self._step, self.total, self._note)
