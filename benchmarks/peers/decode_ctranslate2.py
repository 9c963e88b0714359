"""Measures CTranslate2 with the same weights as ours, from tokens to tokens.

pip install ctranslate2
Usage: decode_ctranslate2.py DIRECTORY BATCH BEAM_SIZE COMPUTE_TYPE [workers]

With `workers`, each thread computes a part of the batch; otherwise all threads share it.
"""

import sys

import ctranslate2
from decode_setting import TARGET_LENGTH, THREADS, measure, source_ids

directory, batch, beam_size, compute_type = sys.argv[1:5]
workers = THREADS if "workers" in sys.argv[5:] else 1
engine = ctranslate2.Translator(
    directory, compute_type=compute_type, intra_threads=THREADS // workers, inter_threads=workers
)
tokens = [[f"w{number}" for number in row] for row in source_ids(int(batch))]


def translate():
    results = engine.translate_batch(
        tokens,
        beam_size=int(beam_size),
        length_penalty=0.6,
        min_decoding_length=TARGET_LENGTH,
        max_decoding_length=TARGET_LENGTH,
        max_batch_size=-(-int(batch) // workers),
    )
    if any(len(result.hypotheses[0]) != TARGET_LENGTH for result in results):
        raise SystemExit(f"answers of other lengths than {TARGET_LENGTH}")


measure(translate, int(batch))
