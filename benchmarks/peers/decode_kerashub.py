"""Measures `generate` of KerasHub's BART, base size with random weights, from ids to ids.

pip install keras-hub
Usage: decode_kerashub.py BATCH BEAM_SIZE float32|bfloat16 [xla]
"""

import sys

import keras
import keras_hub
import numpy as np
import tensorflow as tf
from decode_setting import SOURCE_LENGTH, TARGET_LENGTH, THREADS, VOCAB, measure, source_ids

tf.config.threading.set_intra_op_parallelism_threads(THREADS)
batch, beam_size, policy = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
keras.config.set_dtype_policy(policy)
keras.utils.set_random_seed(0)
backbone = keras_hub.models.BartBackbone(VOCAB, 6, 8, 512, 2048, max_sequence_length=512)
model = keras_hub.models.BartSeq2SeqLM(backbone, preprocessor=None)
sampler = keras_hub.samplers.BeamSampler(num_beams=beam_size) if beam_size > 1 else "greedy"
model.compile(sampler=sampler, jit_compile="xla" in sys.argv[4:])
sources = np.concatenate([source_ids(batch), np.full((batch, 1), 3)], axis=1)
begun = np.arange(1 + TARGET_LENGTH) < 1
inputs = {
    "encoder_token_ids": sources.astype("int32"),
    "encoder_padding_mask": np.ones((batch, SOURCE_LENGTH), "bool"),
    "decoder_token_ids": np.tile(2 * begun, (batch, 1)).astype("int32"),
    "decoder_padding_mask": np.tile(begun, (batch, 1)),
}
measure(lambda: model.generate(inputs, stop_token_ids=None), batch)
