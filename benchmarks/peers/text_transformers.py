"""Measures `generate` of a Marian model in transformers, from text to text, in float32.

pip install transformers torch sentencepiece
Usage: text_transformers.py FOLDER SOURCE REFERENCE BEAM_SIZE
"""

import sys

import torch
import transformers
from text_setting import BATCH, THREADS, measure

folder, source, reference, beam_size = sys.argv[1:]
torch.set_num_threads(THREADS)
tokenizer = transformers.MarianTokenizer.from_pretrained(folder)
model = transformers.MarianMTModel.from_pretrained(folder, dtype=torch.float32).eval()
options = {"num_beams": int(beam_size), "do_sample": False, "length_penalty": 1.0}
if beam_size != "1":
    options["early_stopping"] = "never"  # as our search stops


def translate(lines):
    order = sorted(range(len(lines)), key=lambda number: -len(lines[number]))
    answers = [""] * len(lines)
    for start in range(0, len(lines), BATCH):
        numbers = order[start : start + BATCH]
        inputs = tokenizer([lines[n] for n in numbers], return_tensors="pt", padding=True)
        tokens = model.generate(**inputs, max_new_tokens=100, **options)
        texts = tokenizer.batch_decode(
            tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        for number, text in zip(numbers, texts, strict=True):
            answers[number] = text
    return answers


with torch.inference_mode():
    measure(translate, source, reference)
