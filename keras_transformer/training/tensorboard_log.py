"""The figures, translations and attention of a training for TensorBoard."""

import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import keras
from keras import ops

from keras_transformer.data.special_tokens import BOS_ID, EOS_ID
from keras_transformer.training.divergence import RecentLoss

TENSORBOARD_FOLDER = "tensorboard"
_NUM_SAMPLES = 5


class TensorBoardLog(keras.callbacks.Callback):
    """Writes the figures of a training for TensorBoard, and samples of answers and attention.

    Every few steps: the loss per token, the learning rate, the norm of the gradient before
    clipping, tokens per second and the share of padding. At evaluations the figures of the
    validation set; with BLEU or F1, some of its sentences with their translations or parses, and
    the attention of the last decoder block for the shortest of them.

    TensorFlow writes the files; only looking at them needs `pip install tensorboard`.

    Args:
        directory: folder of the event files.
        tokens_per_step: float, target tokens of an average step, padding not counted.
        padding_share: dict of "source" and "target" to the share of padding, 0 to 1.
        every: int, steps between figures.
    """

    def __init__(
        self,
        directory: str | os.PathLike,
        tokens_per_step: float,
        padding_share: Mapping[str, float],
        every: int = 10,
    ):
        super().__init__()
        self.directory = Path(directory)
        self.every = every
        self._tokens_per_step = tokens_per_step
        self._padding = {f"padding/{side}": share for side, share in padding_share.items()}
        self._step = 0
        self._window = (0, 0.0)
        self._recent_loss = None
        self._file_writer = None

    def on_train_begin(self, logs: dict | None = None) -> None:
        optimizer = self.model.optimizer
        self._step = int(optimizer.iterations.numpy())
        # Before the first step is traced: the norm becomes a part of it.
        if hasattr(optimizer, "watch_gradient_norm"):
            optimizer.watch_gradient_norm(self.model)

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        # The evaluation between two epochs does not count as training time.
        self._window = (self._step, time.monotonic())
        self._recent_loss = RecentLoss(self)

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        self._step += 1
        first, start = self._window
        if self._step % self.every or self._step == first:
            return
        loss = self._recent_loss()  # Waits for the step, so it comes before the clock is read.
        now = time.monotonic()
        figures = {
            "train/learning_rate": ops.convert_to_numpy(self.model.optimizer.learning_rate),
            "train/tokens_per_second": (self._step - first) * self._tokens_per_step / (now - start),
            **self._padding,
        }
        if loss is not None:
            figures["train/loss"] = loss
        norm = getattr(self.model.optimizer, "gradient_norm", None)
        if norm is not None:
            figures["train/gradient_norm"] = ops.convert_to_numpy(norm)
        self._write_scalars(figures, self._step)
        self._window = (self._step, time.monotonic())

    def on_train_end(self, logs: dict | None = None) -> None:
        self.flush()

    def write_evaluation(self, row: Mapping[str, object]) -> None:
        """Writes the figures of an evaluation, a row of the history."""
        known = {
            column.replace("_", "/", 1): value
            for column, value in row.items()
            if column.startswith("valid_")
        }
        self._write_scalars(known, row["step"])
        self.flush()

    def write_samples(self, step: int, score) -> None:
        """Writes sentences with the answers that `score` evaluated, and an attention map."""
        rows = score.samples(_NUM_SAMPLES)
        table = [("source", score.answer_name, "reference"), *rows]
        self._write(f"valid/{score.answer_name}s", "text", table, step)
        shortest = min((source for source, *_ in rows), key=len)
        picture = _attention_picture(score.translator, shortest)
        if picture is not None:
            # Width and height come before the encoded picture.
            size = [str(int.from_bytes(picture[at : at + 4], "big")) for at in (16, 20)]
            self._write("valid/attention", "images", [*size, picture], step)

    def flush(self) -> None:
        """Writes all figures to the disk."""
        if self._file_writer is not None:
            self._file_writer.flush()

    def _write_scalars(self, figures, step):
        for name, value in figures.items():
            self._write(name, "scalars", float(value), step)

    def _write(self, name, plugin, value, step):
        import tensorflow as tf

        if self._file_writer is None:
            self._file_writer = tf.summary.create_file_writer(str(self.directory))
        # `tf.summary.scalar` and its like need the package tensorboard to be installed.
        metadata = tf.compat.v1.SummaryMetadata(plugin_data={"plugin_name": plugin})
        with self._file_writer.as_default():
            tf.summary.write(name, tf.constant(value), step=int(step), metadata=metadata)


def cross_attention(translator, text: str):
    """Translates a text and returns the attention of the last decoder block to the source.

    Returns:
        (weights `[heads, target length, source length]`, source pieces, target pieces), or None
        if the source or the translation has no token. Row t is of the step that wrote target
        piece t.
    """
    source = translator.source_tokenizer.encode(text)
    # The tokens of the search: the encoded text may be split differently.
    target = list(translator.hypotheses([text])[0][0].tokens)
    if not source or not target:
        return None
    source = [*source, EOS_ID]
    scores = translator.model.attention_scores(
        ops.convert_to_tensor([source], "int32"),
        ops.convert_to_tensor([[BOS_ID, *target[:-1]]], "int32"),
    )
    weights = ops.convert_to_numpy(ops.cast(scores["cross"][-1], "float32"))[0]
    return (
        weights,
        translator.source_tokenizer.pieces(source),
        translator.target_tokenizer.pieces(target),
    )


def _attention_picture(translator, text: str) -> bytes | None:
    """Returns the PNG file of an attention map."""
    from keras_transformer.evaluation import plot_attention

    found = cross_attention(translator, text)
    if found is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        return plot_attention(*found, Path(folder) / "attention.png").read_bytes()
