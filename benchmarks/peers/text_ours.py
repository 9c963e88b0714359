"""Measures `Translator.translate`, which sorts and batches the lines, with a stream per thread.

Usage: text_ours.py MODEL SOURCE REFERENCE BEAM_SIZE float32|bfloat16 PATIENCE
"""

import sys

import tensorflow as tf
from text_setting import THREADS, load_translator, make_search, measure

model, source, reference, beam_size, dtype, patience = sys.argv[1:]
tf.config.threading.set_intra_op_parallelism_threads(1)
translator = load_translator(model, dtype)
search = make_search(beam_size, patience)
measure(
    lambda lines: translator.translate(lines, search, num_streams=THREADS),
    source,
    reference,
)
