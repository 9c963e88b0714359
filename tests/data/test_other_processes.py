"""Vocabularies, batches, files, weights and dropout are the same in every process."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAM = """
import json, pathlib, random, sys, zlib
import keras, numpy as np
from keras_transformer.data import (
    EncodedCorpus, PairsCorpus, TokenBatches, build_subword_vocabulary, prepare_corpus,
    train_sentencepiece,
)
from keras_transformer.data.lines import sample_lines
from keras_transformer.layers import Dropout
from keras_transformer.models import Transformer

def checksum(*values):
    return [zlib.crc32(keras.ops.convert_to_numpy(value).tobytes()) for value in values]

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
        found[f"{packed_width} {epoch}"] = [checksum(*arrays) for arrays in batch]
prepared = prepare_corpus(sys.argv[1], corpus, corpus, tokenizer)
for path in sorted(path for path in prepared.directory.rglob("*") if path.is_file()):
    found[str(path.relative_to(prepared.directory))] = zlib.crc32(path.read_bytes())
keras.utils.set_random_seed(5)
model = Transformer.from_preset("tiny", vocab_size=50, num_encoder_layers=1, num_decoder_layers=1)
found["weights"] = checksum(*model.variables)
dropout = Dropout(0.5, seed=3)
found["dropout"] = checksum(*(dropout(np.ones(40), training=True) for _ in range(2)))
json.dump(found, sys.stdout)
"""


def test_vocabularies_batches_files_weights_and_dropout_are_the_same_in_another_process(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(sys, "argv", ["", tmp_path / "here"])
    exec(PROGRAM, {})
    here = json.loads(capsys.readouterr().out)
    others = {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "1", "OMP_NUM_THREADS": "2"}
    others |= {"TF_NUM_INTRAOP_THREADS": "3", "TF_ENABLE_ONEDNN_OPTS": "1"}
    command = [sys.executable, "-c", PROGRAM, tmp_path / "there"]
    result = subprocess.run(command, env=os.environ | others, capture_output=True, text=True)
    there = json.loads(result.stdout or result.stderr[-2000:])
    assert len(here) == 23
    for name, value in here.items():
        assert there[name] == value, name
