"""Trains our model on Multi30k with `fit`: batches by number of tokens, mixed_bfloat16.

Usage: epoch_ours.py [--library DIR] [--streams N] [--preset NAME] [--logits | --packed WIDTH]
"""

import argparse
import sys

from epoch_setting import (
    D_MODEL,
    DROPOUT,
    HEADS,
    INTERMEDIATE,
    LAYERS,
    VOCAB,
    WARM_UP_STEPS,
    Clock,
    read_pairs,
    report,
)

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--library", metavar="DIR", help="checkout of another version of ours")
parser.add_argument("--streams", type=int, help="parts of a batch computed at the same time")
parser.add_argument("--preset", help="its model instead of the one of epoch_setting.py")
parser.add_argument("--logits", action="store_true", help="logits and loss apart, not LossModel")
parser.add_argument("--packed", type=int, metavar="WIDTH", help="several pairs in rows of WIDTH")
options = parser.parse_args()
if options.library:
    sys.path.insert(0, options.library)
if options.streams:  # Before any computation, and only on request: old versions lack streams.
    from keras_transformer.cli.backend import load_backend_in_streams

    load_backend_in_streams(options.streams)

from keras_transformer import Transformer, TransformerConfig, get_preset  # noqa: E402
from keras_transformer.data import (  # noqa: E402
    EncodedCorpus,
    PairsCorpus,
    TokenBatches,
    train_sentencepiece,
)
from keras_transformer.training import LossModel, compile_model  # noqa: E402

pairs = read_pairs()
tokenizer = train_sentencepiece((text for pair in pairs for text in pair), vocab_size=VOCAB)
encoded = EncodedCorpus.from_corpus(PairsCorpus(pairs), tokenizer)
batches = TokenBatches(encoded, tokens_per_batch=4_096, packed_width=options.packed)
if options.preset:
    config = TransformerConfig(**get_preset(options.preset).config, vocab_size=VOCAB)
else:
    config = TransformerConfig(
        vocab_size=VOCAB,
        num_encoder_layers=LAYERS,
        num_decoder_layers=LAYERS,
        d_model=D_MODEL,
        intermediate_dim=INTERMEDIATE,
        num_heads=HEADS,
        dropout=DROPOUT,
    )
model = Transformer(config, dtype="mixed_bfloat16")
dataset = batches.dataset()
if not options.logits:
    model = LossModel(model, packed=options.packed is not None)
    model.streams = options.streams or 1

compile_model(model, get_preset("small").recipe)
clock = Clock()
model.fit(dataset, steps_per_epoch=100_000, shuffle=False, verbose=0, callbacks=[clock])
per_epoch = batches.steps_per_epoch()
tokens_per_epoch = int(encoded.target_lengths.sum())
counted = [
    int((weights > 0).sum())
    for epoch in range(clock.steps // per_epoch + 1)
    for _, _, weights in batches.batches(epoch)
]
report(sum(counted[WARM_UP_STEPS : clock.steps]), clock.seconds, tokens_per_epoch)
