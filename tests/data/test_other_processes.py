"""Vocabularies, batches and BPE-dropout are the same in every process."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAM = """
import json, random, sys, zlib
from keras_transformer.data import (
    EncodedCorpus, PairsCorpus, TokenBatches, build_subword_vocabulary, train_sentencepiece,
)
from keras_transformer.data.vocabularies import sample_lines

draw = random.Random(0)
words = ["".join(draw.choices("abcdefgh", k=draw.randint(1, 5))) for _ in range(80)]
lines = [" ".join(draw.choices(words, k=draw.randint(1, 9))) for _ in range(400)]
corpus = PairsCorpus(list(zip(lines[::2], lines[1::2])))
found = {"sample": sample_lines(lines, 5, seed=3)}
vocabularies = {kind: train_sentencepiece(lines, 290, kind) for kind in ("bpe", "unigram")}
vocabularies["subword"] = build_subword_vocabulary(lines, 60)
for kind, tokenizer in vocabularies.items():
    found[kind] = tokenizer.pieces(range(tokenizer.vocab_size)), tokenizer.encode_batch(lines)
for seed in (0, 2**64 + 5):
    found[f"dropout of merges {seed}"] = vocabularies["bpe"].encode_batch(lines, 0.2, seed)
encoded = EncodedCorpus.from_corpus(corpus, tokenizer)
for packed_width in (None, 40):
    batches = TokenBatches(encoded, 200, seed=7, packed_width=packed_width)
    for epoch in (0, 3):
        batch = [(*inputs.values(), labels) for inputs, labels, _ in batches.batches(epoch)]
        found[f"{packed_width} {epoch}"] = [[zlib.crc32(a) for a in arrays] for arrays in batch]
json.dump(found, sys.stdout)
"""


def test_vocabularies_batches_and_dropout_are_the_same_in_another_process(capsys):
    exec(PROGRAM, {})
    here = json.loads(capsys.readouterr().out)
    others = {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "1", "OMP_NUM_THREADS": "2"}
    command = [sys.executable, "-c", PROGRAM]
    result = subprocess.run(command, env=os.environ | others, capture_output=True, text=True)
    there = json.loads(result.stdout or result.stderr[-2000:])
    for name, value in here.items():
        assert there[name] == value, name
