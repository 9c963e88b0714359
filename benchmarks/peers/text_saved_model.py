"""Our SavedModel, in a process that imports TensorFlow: all lines in one request, shortest first.

Usage: text_saved_model.py DIRECTORY SOURCE REFERENCE
"""

import sys

import tensorflow as tf
import tensorflow_text  # noqa: F401
from text_setting import BATCH, THREADS, measure

directory, source, reference = sys.argv[1:]
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(THREADS)
serve = tf.saved_model.load(directory).signatures["serving_default"]


def translate(lines):
    order = sorted(range(len(lines)), key=lambda index: len(lines[index]))
    answers = [""] * len(lines)
    size = BATCH * THREADS
    for start in range(0, len(lines), size):
        indices = order[start : start + size]
        request = tf.constant([lines[index] for index in indices])
        for index, answer in zip(indices, serve(text=request)["translation"].numpy(), strict=True):
            answers[index] = answer.decode()
    return answers


measure(translate, source, reference)
