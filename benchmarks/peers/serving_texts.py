"""Measures `Translator.translate` of the texts that clients send, and writes its answers.

Usage: serving_texts.py MODEL TEXTS NUMBER
"""

import json
import random
import statistics
import sys
import time
from pathlib import Path

import tensorflow as tf
from text_setting import THREADS

from keras_transformer import Translator
from keras_transformer.data import SubwordTokenizer
from keras_transformer.quickstart.corpus import draw_pair

model, path, number = sys.argv[1:]
tf.config.threading.set_intra_op_parallelism_threads(1)
translator, rng = Translator.load(model), random.Random(5)
if isinstance(translator.source_tokenizer, SubwordTokenizer):  # of serving_base.py
    size = translator.source_tokenizer.vocab_size
    lengths = [rng.randint(4, 24) for _ in range(int(number))]
    texts = [" ".join(f"w{rng.randrange(4, size)}" for _ in range(length)) for length in lengths]
else:
    texts = [draw_pair(rng)[0] for _ in range(int(number))]
seconds, cpu_seconds = [], []
translator.translate(texts[:64], num_streams=THREADS)
for _ in range(3):
    start, cpu_start = time.perf_counter(), time.process_time()
    answers = translator.translate(texts, num_streams=THREADS)
    seconds.append(time.perf_counter() - start)
    cpu_seconds.append(time.process_time() - cpu_start)
Path(path).write_text(json.dumps({"text": texts, "translation": answers}), "utf-8")
result = {
    "sentences_per_second": len(texts) / statistics.median(seconds),
    "sentences_per_cpu_second": len(texts) / statistics.median(cpu_seconds),
}
print(json.dumps({"translate": result}))
