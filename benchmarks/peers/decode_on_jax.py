"""Measures our search with Keras on JAX, base size with random weights, from ids to ids.

Usage: decode_on_jax.py BATCHES BEAM_SIZES POLICY, such as 1,32 1,4 bfloat16

The embedding of EOS is zero, as in decode_export.py, so that every answer has the maximum length.
"""

import sys

import keras
import numpy as np
from decode_setting import TARGET_LENGTH, VOCAB, measure, source_ids

from keras_transformer import Transformer
from keras_transformer.data.tokenizer import EOS_ID
from keras_transformer.decoding import BeamSearch, GreedySearch, compile_search
from keras_transformer.inference.batch_inference import encode_and_search

batches, beam_sizes = ([int(number) for number in text.split(",")] for text in sys.argv[1:3])
keras.utils.set_random_seed(0)
model = Transformer.from_preset("base", vocab_size=VOCAB, dtype=sys.argv[3])
[embeddings] = model.target_embedding.get_weights()
embeddings[EOS_ID] = 0.0
model.target_embedding.set_weights([embeddings])


def measure_search(search, batch):
    def run(source, max_lengths, max_length):
        return encode_and_search(model, source, max_lengths, search, max_length)

    compiled = compile_search(run, model.variables, sizes=("max_length",))
    source = np.concatenate([source_ids(batch), np.full((batch, 1), EOS_ID)], axis=1)
    source, limits = source.astype("int32"), np.full(batch, TARGET_LENGTH, "int32")

    def translate():
        result = compiled(source, limits, max_length=TARGET_LENGTH)
        if (keras.ops.convert_to_numpy(result.lengths) != TARGET_LENGTH).any():
            raise SystemExit(f"answers that do not have {TARGET_LENGTH} tokens")
        return keras.ops.convert_to_numpy(result.tokens)

    measure(translate, batch, beam_size=search.width)


for batch in batches:
    for beam_size in beam_sizes:
        measure_search(BeamSearch(beam_size) if beam_size > 1 else GreedySearch(), batch)
