"""keras_transformer on Multi30k: batches by number of tokens, `model.fit`, mixed_bfloat16."""

import time

import keras
from epoch_setting import (
    D_MODEL,
    DROPOUT,
    HEADS,
    INTERMEDIATE,
    LAYERS,
    SECONDS,
    VOCAB,
    WARM_UP_STEPS,
    read_pairs,
    report,
)

from keras_transformer import Transformer, TransformerConfig, get_preset
from keras_transformer.data import EncodedCorpus, PairsCorpus, TokenBatches, train_sentencepiece
from keras_transformer.training import compile_model


class Clock(keras.callbacks.Callback):
    """Counts steps and time after the first ones, in which each shape of batch is traced."""

    def __init__(self):
        super().__init__()
        self.steps = 0

    def on_train_batch_end(self, batch, logs=None):
        float(logs["loss"])
        self.steps += 1
        if self.steps == WARM_UP_STEPS:
            self.start = time.perf_counter()
        elif self.steps > WARM_UP_STEPS:
            self.seconds = time.perf_counter() - self.start
            self.model.stop_training = self.seconds > SECONDS


pairs = read_pairs()
tokenizer = train_sentencepiece((text for pair in pairs for text in pair), vocab_size=VOCAB)
encoded = EncodedCorpus.from_corpus(PairsCorpus(pairs), tokenizer)
batches = TokenBatches(encoded, tokens_per_batch=4_096)
model = Transformer(
    TransformerConfig(
        vocab_size=VOCAB,
        num_encoder_layers=LAYERS,
        num_decoder_layers=LAYERS,
        d_model=D_MODEL,
        intermediate_dim=INTERMEDIATE,
        num_heads=HEADS,
        dropout=DROPOUT,
    ),
    dtype="mixed_bfloat16",
)
compile_model(model, get_preset("small").recipe)
clock = Clock()
model.fit(batches.dataset(), steps_per_epoch=100_000, shuffle=False, verbose=0, callbacks=[clock])
per_epoch = batches.steps_per_epoch()
tokens_per_epoch = int(encoded.target_lengths.sum())
counted = [
    int((weights > 0).sum())
    for epoch in range(clock.steps // per_epoch + 1)
    for _, _, weights in batches.batches(epoch)
]
report(sum(counted[WARM_UP_STEPS : clock.steps]), clock.seconds, tokens_per_epoch)
