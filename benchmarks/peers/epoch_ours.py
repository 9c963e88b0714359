"""keras_transformer on Multi30k: batches by number of tokens, `model.fit`, mixed_bfloat16.

Usage: epoch_ours.py [logits | packed WIDTH]

As `train` does it, the model of losses; "logits" is logits and loss apart, "packed" puts several
pairs into each row.
"""

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

from keras_transformer import Transformer, TransformerConfig, get_preset
from keras_transformer.data import EncodedCorpus, PairsCorpus, TokenBatches, train_sentencepiece
from keras_transformer.training import LossModel, compile_model

pairs = read_pairs()
tokenizer = train_sentencepiece((text for pair in pairs for text in pair), vocab_size=VOCAB)
encoded = EncodedCorpus.from_corpus(PairsCorpus(pairs), tokenizer)
packed_width = int(sys.argv[2]) if "packed" in sys.argv else None
batches = TokenBatches(encoded, tokens_per_batch=4_096, packed_width=packed_width)
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
dataset = batches.dataset()
if "logits" not in sys.argv:
    model = LossModel(model, packed=packed_width is not None)
    dataset = dataset.map(LossModel.arrange)
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
