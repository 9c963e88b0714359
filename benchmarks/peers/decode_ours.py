"""Our SavedModel in a process that imports only TensorFlow, text in and text out.

Usage: decode_ours.py DIRECTORY BATCH
"""

import sys

import tensorflow as tf
import tensorflow_text  # noqa: F401
from decode_setting import TARGET_LENGTH, THREADS, measure, source_ids

tf.config.threading.set_intra_op_parallelism_threads(THREADS)
directory, batch = sys.argv[1], int(sys.argv[2])
translate = tf.saved_model.load(directory).signatures["serving_default"]
text = tf.constant([" ".join(f"w{number}" for number in row) for row in source_ids(batch)])
lengths = {len(line.split()) for line in translate(text=text)["translation"].numpy()}
if lengths != {TARGET_LENGTH}:
    raise SystemExit(f"answers of {sorted(lengths)} tokens, not {TARGET_LENGTH}")
measure(lambda: translate(text=text)["translation"].numpy(), batch)
