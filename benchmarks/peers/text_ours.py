"""`Translator.translate`: lines sorted, cut into batches, searched in as many streams as threads.

Usage: text_ours.py MODEL SOURCE REFERENCE BEAM_SIZE float32|bfloat16
"""

import sys

import tensorflow as tf
from text_setting import BATCH, THREADS, measure

from keras_transformer import Translator
from keras_transformer.decoding import BeamSearch, GreedySearch

model, source, reference, beam_size, dtype = sys.argv[1:]
tf.config.threading.set_intra_op_parallelism_threads(1)
translator = Translator.load(model, dtype=dtype)
search = GreedySearch() if beam_size == "1" else BeamSearch(int(beam_size))
measure(
    lambda lines: translator.translate(lines, search, batch_size=BATCH, num_streams=THREADS),
    source,
    reference,
)
