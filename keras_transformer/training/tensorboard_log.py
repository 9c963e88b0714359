"""The figures, translations and attention of a training for TensorBoard."""

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keras import ops

from keras_transformer.training.callbacks import StepWindow

TENSORBOARD_FOLDER = "tensorboard"
_NUM_SAMPLES = 5
_STEPS_BETWEEN_FIGURES = 10


class TensorBoardLog(StepWindow):
    """Writes the figures of a training for TensorBoard, and samples of answers and attention."""

    def __init__(self, directory: Path, tokens_per_step: float, padding_share: Mapping[str, float]):
        super().__init__(_STEPS_BETWEEN_FIGURES, tokens_per_step)
        self.directory = directory
        self._padding = {f"padding/{side}": share for side, share in padding_share.items()}
        self._file_writer: Any = None

    def on_train_begin(self, logs: dict | None = None) -> None:
        super().on_train_begin()
        # Before the first step is traced: the norm becomes a part of it.
        if hasattr(self.model.optimizer, "watch_gradient_norm"):
            self.model.optimizer.watch_gradient_norm(self.model)

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        super().on_train_batch_end(batch)
        if self._step % self.every or self._step == self._window[0]:
            return
        loss, speed = self._loss_and_speed()
        figures = {
            "train/learning_rate": ops.convert_to_numpy(self.model.optimizer.learning_rate),
            "train/tokens_per_second": speed,
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
        if self._file_writer is not None:
            self._file_writer.flush()

    def write_evaluation(self, row: Mapping[str, object]) -> None:
        """Writes the figures of an evaluation, a row of the history."""
        known = {name: value for name, value in row.items() if name.startswith("valid_")}
        figures = {name.replace("_", "/", 1): value for name, value in known.items()}
        self._write_scalars(figures, row["step"])
        self.on_train_end()

    def write_samples(self, step: int, score) -> None:
        """Writes sentences with the answers that `score` evaluated, and an attention map."""
        rows = score.samples(_NUM_SAMPLES)
        table = [("source", score.answer_name, "reference"), *rows]
        self._write(f"valid/{score.answer_name}s", "text", table, step)
        shortest = min((source for source, *_ in rows), key=len)
        translator = score.translator
        # A picture must not end the training: a sentence that the model cannot read is not drawn.
        if 0 < len(translator.source_tokenizer.encode(shortest)) < translator.max_source_length:
            from keras_transformer.evaluation import attention_weights, plot_attention

            weights = attention_weights(translator, shortest)
            last = weights.view("cross", layer=len(weights.cross))
            with tempfile.TemporaryDirectory() as folder:
                picture = plot_attention(*last, Path(folder, "attention.png")).read_bytes()
            # TensorBoard expects width and height, here from the PNG header, before the picture.
            size = [str(int.from_bytes(picture[at : at + 4], "big")) for at in (16, 20)]
            self._write("valid/attention", "images", [*size, picture], step)

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
