"""Measures our SavedModel in a process with TensorFlow alone: one request, or several clients.

Usage: text_saved_model.py DIRECTORY SOURCE REFERENCE CLIENTS

One client sends all lines in one request; several clients send 64 lines at a time, in file order.
"""

import sys
from concurrent.futures import ThreadPoolExecutor

import tensorflow as tf
import tensorflow_text  # noqa: F401
from text_setting import BATCH, THREADS, measure

directory, source, reference, clients = sys.argv[1:]
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(THREADS)
serve = tf.saved_model.load(directory).signatures["serving_default"]


def ask(lines):
    return [answer.decode() for answer in serve(text=tf.constant(lines))["translation"].numpy()]


def translate(lines):
    if clients == "1":
        return ask(lines)
    requests = [lines[start : start + BATCH] for start in range(0, len(lines), BATCH)]
    with ThreadPoolExecutor(int(clients)) as executor:
        return [answer for answers in executor.map(ask, requests) for answer in answers]


measure(translate, source, reference)
