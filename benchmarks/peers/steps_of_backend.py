"""Trains with `train` and its defaults for some time, on the backend of KERAS_BACKEND.

Usage: steps_of_backend.py MODEL SECONDS

MODEL is `tiny`, or `3+3`: the model that the command line chooses for 60,000 to 500,000 pairs.
Prints the seconds from the call to the end of the first step, and in the SECONDS after the first
minute the target tokens a second, by the clock and for each second of a core.
"""

# ruff: noqa: E402

import json
import re
import sys
import tempfile
import time

from keras_transformer.cli.backend import TRAINING_STREAMS, load_backend_in_streams

streams = load_backend_in_streams(None, TRAINING_STREAMS, trains=True)  # as the command line does

import keras

from keras_transformer.data import PairsCorpus, train_sentencepiece
from keras_transformer.quickstart.corpus import number_corpus
from keras_transformer.training import TrainingSettings, train

WARM_UP = 60.0
kind, seconds = sys.argv[1], float(sys.argv[2])
pairs, _, _ = number_corpus(num_train=20_000, num_valid=0, num_test=0)
tokenizer = train_sentencepiece((text for pair in pairs for text in pair), vocab_size=1_000)
options = {"preset": "tiny", "recipe": {"optimizer": "adam", "tokens_per_batch": 4_096}}
if kind == "3+3":
    layers = {"num_encoder_layers": 3, "num_decoder_layers": 3}
    options = {"preset": "small", "model": layers, "recipe": {"tokens_per_batch": 4_096}}
settings = TrainingSettings(**options, max_steps=10**6, evaluate_every=10**6, streams=streams)
lines = []


class Clock(keras.callbacks.Callback):
    """Notes the end of the first step, and the steps after the first minute."""

    def on_train_begin(self, logs=None):
        self.begin, self.first, self.window = time.monotonic(), None, None

    def on_train_batch_end(self, batch, logs=None):
        since, limit = (self.begin, WARM_UP) if self.window is None else (self.window[0], seconds)
        if self.window is not None:
            self.steps += 1
        is_over = time.monotonic() > since + limit
        if self.first is not None and not is_over:
            return
        float(logs["loss"])  # JAX computes in the background: this waits for all steps.
        now = time.monotonic(), time.process_time()
        if self.first is None:
            self.first = now[0]
        elif self.window is None:
            self.window, self.steps = now, 0
        else:
            self.end = now
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
