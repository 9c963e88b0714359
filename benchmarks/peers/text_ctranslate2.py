"""Measures CTranslate2 with our weights, from text to text, with one worker per thread.

pip install ctranslate2 sentencepiece
Usage: text_ctranslate2.py DIRECTORY SOURCE REFERENCE BEAM_SIZE float32|int8
"""

import sys

import ctranslate2
import sentencepiece
from text_setting import BATCH, THREADS, measure

directory, source, reference, beam_size, compute_type = sys.argv[1:]
engine = ctranslate2.Translator(
    directory, compute_type=compute_type, intra_threads=1, inter_threads=THREADS
)
pieces = sentencepiece.SentencePieceProcessor(model_file=f"{directory}/tokenizer.model")


def translate(lines):
    # `translate_batch` sorts by length itself.
    results = engine.translate_batch(
        pieces.encode(lines, out_type=str),
        beam_size=int(beam_size),
        length_penalty=0.45,
        min_decoding_length=0,
        max_batch_size=BATCH,
    )
    return [pieces.decode(result.hypotheses[0]) for result in results]


measure(translate, source, reference)
