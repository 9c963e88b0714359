"""Trains a model of KerasHub's blocks, as in its guides, on Multi30k: batches of 64, bfloat16."""

import tempfile
from pathlib import Path

import keras
import keras_hub
import numpy as np
import sentencepiece
import tensorflow as tf
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
from keras import layers


def build():
    source = keras.Input((None,), dtype="int32")
    target = keras.Input((None,), dtype="int32")
    embedding = keras_hub.layers.ReversibleEmbedding(
        VOCAB, D_MODEL, tie_weights=True, mask_zero=True
    )
    positions = keras_hub.layers.SinePositionEncoding(dtype="float32")

    def embed(ids):
        states = embedding(ids)
        return layers.Dropout(DROPOUT)(states * D_MODEL**0.5 + positions(states))

    mask = layers.Lambda(lambda ids: keras.ops.not_equal(ids, 0))(source)
    encoded = embed(source)
    for _ in range(LAYERS):
        block = keras_hub.layers.TransformerEncoder(INTERMEDIATE, HEADS, dropout=DROPOUT)
        encoded = block(encoded, padding_mask=mask)
    decoded = embed(target)
    for _ in range(LAYERS):
        block = keras_hub.layers.TransformerDecoder(INTERMEDIATE, HEADS, dropout=DROPOUT)
        decoded = block(decoded, encoded, encoder_padding_mask=mask)
    logits = layers.Activation("linear", dtype="float32")(embedding(decoded, reverse=True))
    return keras.Model([source, target], logits)


pairs = read_pairs()
with tempfile.TemporaryDirectory() as folder:
    text = Path(folder) / "all.txt"
    text.write_text("\n".join(side for pair in pairs for side in pair), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(text),
        model_prefix=f"{folder}/pieces",
        vocab_size=VOCAB,
        model_type="bpe",
        character_coverage=1.0,
        byte_fallback=True,
        pad_id=0,
        unk_id=1,
        bos_id=2,
        eos_id=3,
    )
    pieces = sentencepiece.SentencePieceProcessor(model_file=f"{folder}/pieces.model")
rows = [(pieces.encode(one) + [3], [2, *pieces.encode(other), 3]) for one, other in pairs]
generator = np.random.default_rng(0)
order = np.concatenate([generator.permutation(len(rows)) for _ in range(2)])
signature = (tf.TensorSpec((None,), tf.int32),) * 2
dataset = (
    tf.data.Dataset.from_generator(lambda: (rows[i] for i in order), output_signature=signature)
    .padded_batch(64, ((None,), (None,)))
    .map(lambda s, t: ((s, t[:, :-1]), t[:, 1:], tf.cast(t[:, 1:] != 0, tf.float32)))
    .prefetch(2)
)
keras.mixed_precision.set_global_policy("mixed_bfloat16")
model = build()
model.compile(
    keras.optimizers.Adam(1e-3, beta_2=0.98, epsilon=1e-9),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    jit_compile=False,
)
clock = Clock()
model.fit(dataset, verbose=0, callbacks=[clock])
lengths = np.array([len(target) - 1 for _, target in rows])
counted = lengths[order[64 * WARM_UP_STEPS : 64 * clock.steps]].sum()
report(int(counted), clock.seconds, int(lengths.sum()))
