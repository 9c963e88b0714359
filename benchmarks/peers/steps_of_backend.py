"""Trains the quickstart's model for some steps with `fit`, on the backend of KERAS_BACKEND.

Usage: steps_of_backend.py STEPS [--packed WIDTH]

Prints the time of steps whose batch shape is new, and of the others, by the clock and of the
processor.
"""

import argparse
import json
import statistics
import time

import keras

from keras_transformer import Transformer, get_preset
from keras_transformer.data import EncodedCorpus, PairsCorpus, TokenBatches, train_sentencepiece
from keras_transformer.quickstart.corpus import number_corpus
from keras_transformer.training import LossModel, compile_model

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("steps", type=int)
parser.add_argument("--packed", type=int, metavar="WIDTH", help="several pairs in rows of WIDTH")
options = parser.parse_args()

keras.utils.set_random_seed(1)
pairs, _, _ = number_corpus(num_train=20_000, num_valid=0, num_test=0)
tokenizer = train_sentencepiece((text for pair in pairs for text in pair), vocab_size=1_000)
encoded = EncodedCorpus.from_corpus(PairsCorpus(pairs), tokenizer)
batches = TokenBatches(encoded, tokens_per_batch=2_048, seed=1, packed_width=options.packed)
layers = {"num_encoder_layers": 2, "num_decoder_layers": 2, "intermediate_dim": 512}
model = Transformer.from_preset("tiny", vocab_size=1_000, **layers)
model = LossModel(model, packed=options.packed is not None)
compile_model(model, get_preset("tiny").recipe)


class Clock(keras.callbacks.Callback):
    """Notes the seconds of each step: by the clock, and of the processor."""

    def on_train_begin(self, logs=None):
        self.steps, self.last = [], (time.monotonic(), time.process_time())

    def on_train_batch_end(self, batch, logs=None):
        float(logs["loss"])  # JAX computes in the background.
        now = time.monotonic(), time.process_time()
        self.steps.append([after - before for after, before in zip(now, self.last, strict=True)])
        self.last = now


clock = Clock()
model.fit(
    batches.dataset().map(LossModel.arrange),
    steps_per_epoch=options.steps,
    shuffle=False,
    verbose=0,
    callbacks=[clock],
)
shapes = [batch[1].shape + batch[0]["source"].shape for batch in batches.batches(0)]
shapes = shapes[: options.steps]
is_new = [shape not in shapes[:number] for number, shape in enumerate(shapes)]
result = {"shapes": len(set(shapes)), "all": len(batches.batch_shapes)}
for kind, wanted in (("new", True), ("known", False)):
    chosen = [step for step, new in zip(clock.steps, is_new, strict=True) if new is wanted]
    seconds = [statistics.median(values) for values in zip(*chosen, strict=True)]
    result |= {kind: seconds[0], f"{kind}_cpu": seconds[1]} if seconds else {}
print(json.dumps(result))
