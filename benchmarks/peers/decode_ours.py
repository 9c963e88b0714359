"""Measures our SavedModel in a process with TensorFlow alone, from text to text.

Usage: decode_ours.py DIRECTORY BATCH [OPERATION_THREADS]

OPERATION_THREADS is 1 by default, because decode_export.py gives the model one stream per thread.
"""

import sys

import tensorflow as tf
import tensorflow_text  # noqa: F401
from decode_setting import TARGET_LENGTH, THREADS, measure, source_ids

directory, batch = sys.argv[1], int(sys.argv[2])
tf.config.threading.set_intra_op_parallelism_threads(int((*sys.argv[3:], "1")[0]))
tf.config.threading.set_inter_op_parallelism_threads(THREADS)
translate = tf.saved_model.load(directory).signatures["serving_default"]
text = tf.constant([" ".join(f"w{number}" for number in row) for row in source_ids(batch)])
lengths = {len(line.split()) for line in translate(text=text)["translation"].numpy()}
if lengths != {TARGET_LENGTH}:
    raise SystemExit(f"answers of {sorted(lengths)} tokens, not {TARGET_LENGTH}")
measure(lambda: translate(text=text)["translation"].numpy(), batch)
