"""Writes a model directory of the base model with random weights and greedy search.

Usage: serving_base.py DIRECTORY

The embedding of EOS is zero, so its logit is far below the largest, and every answer has the
maximum length, that of its source.
"""

import sys

import keras

from keras_transformer import Transformer, Translator
from keras_transformer.data import SubwordTokenizer
from keras_transformer.data.tokenizer import EOS_ID
from keras_transformer.decoding import GreedySearch

keras.utils.set_random_seed(0)
tokenizer = SubwordTokenizer([f"w{number}" for number in range(4, 32_000)])
model = Transformer.from_preset("base", vocab_size=tokenizer.vocab_size)
[embeddings] = model.target_embedding.get_weights()
embeddings[EOS_ID] = 0.0
model.target_embedding.set_weights([embeddings])
Translator(model, tokenizer, search=GreedySearch(), extra_length=1).save(sys.argv[1])
print("{}")
