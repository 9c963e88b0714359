"""Trains with `train` and its defaults for some time, on the backend of KERAS_BACKEND.

Usage: steps_of_backend.py MODEL SECONDS

MODEL is `tiny`, or `3+3`: the model that the command line chooses for 60,000 to 500,000 pairs.
Prints the seconds from the call to the end of the first step, and in the SECONDS after the first
minute the target tokens a second, by the clock and for each second of a core.
"""

import json
import re
import sys
import tempfile
import time

import keras

from keras_transformer.data import PairsCorpus, train_sentencepiece
from keras_transformer.quickstart.corpus import number_corpus
from keras_transformer.training import TrainingSettings, train

WARM_UP = 60.0
kind, seconds = sys.argv[1], float(sys.argv[2])
pairs, _, _ = number_corpus(num_train=20_000, num_valid=0, num_test=0)
tokenizer = train_sentencepiece((text for pair in pairs for text in pair), vocab_size=1_000)
options = {"preset": "tiny"}
if kind == "3+3":
    layers = {"num_encoder_layers": 3, "num_decoder_layers": 3}
    options = {"preset": "small", "model": layers, "recipe": {"tokens_per_batch": 4_096}}
streams = 2 if keras.backend.backend() == "tensorflow" else 1  # as the command line chooses
if streams > 1:
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
settings = TrainingSettings(**options, max_steps=10**6, evaluate_every=10**6, streams=streams)
lines = []


class Clock(keras.callbacks.Callback):
    """Notes the end of the first step, and the steps after the first minute."""

    def on_train_begin(self, logs=None):
        self.begin, self.first, self.window = time.monotonic(), None, None

    def on_train_batch_end(self, batch, logs=None):
        float(logs["loss"])  # JAX computes in the background.
        now = time.monotonic()
        if self.first is None:
            self.first = now
        if self.window is None and now > self.begin + WARM_UP:
            self.window, self.steps = (now, time.process_time()), 0
        elif self.window is not None:
            self.steps += 1
            if now > self.window[0] + seconds:
                self.end = now, time.process_time()
                raise KeyboardInterrupt


clock, start = Clock(), time.monotonic()
with tempfile.TemporaryDirectory() as folder:
    corpus = PairsCorpus(pairs)
    tokenizers = {"source_tokenizer": tokenizer}
    try:
        train(
            f"{folder}/model",
            corpus,
            None,
            settings,
            callbacks=[clock],
            report=lines.append,
            **tokenizers,
        )
    except KeyboardInterrupt:
        pass
found = re.search(r"([\d,]+) target tokens, ([\d,]+) steps an epoch", "\n".join(lines))
tokens, steps = (int(number.replace(",", "")) for number in found.groups())
done = clock.steps * tokens / steps
by_clock, by_core = (end - begin for end, begin in zip(clock.end, clock.window, strict=True))
result = {"first": clock.first - start, "rate": done / by_clock, "core_rate": done / by_core}
print(json.dumps(result))
