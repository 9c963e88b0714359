"""Exports a base model with random weights for decode_ours.py or decode_ctranslate2.py.

Usage: decode_export.py DIRECTORY FORMAT BEAM_SIZE, FORMAT: float32, bfloat16, int8 or ctranslate2

The embedding of EOS is zero, so its logit is 0, far below the largest of 32,000 random logits, and
every answer has the maximum length. The vocabulary consists of whole words, `w4` to `w31999`.
"""

import json
import sys

import keras
from decode_setting import SOURCE_LENGTH, TARGET_LENGTH, THREADS, VOCAB

from keras_transformer import Transformer, Translator
from keras_transformer.data import SubwordTokenizer
from keras_transformer.data.tokenizer import EOS_ID
from keras_transformer.decoding import BeamSearch, GreedySearch
from keras_transformer.export import export_ctranslate2, export_saved_model

directory, form, beam_size = sys.argv[1], sys.argv[2], int(sys.argv[3])
policy = form if form == "bfloat16" else "float32"
keras.utils.set_random_seed(0)
tokenizer = SubwordTokenizer([f"w{number}" for number in range(4, VOCAB)])
model = Transformer.from_preset("base", vocab_size=tokenizer.vocab_size, dtype=policy)
[embeddings] = model.target_embedding.get_weights()
embeddings[EOS_ID] = 0.0
model.target_embedding.set_weights([embeddings])
search = BeamSearch(beam_size) if beam_size > 1 else GreedySearch()
# The maximum length is the number of subwords without EOS, plus `extra_length`.
extra_length = TARGET_LENGTH - (SOURCE_LENGTH - 1)
translator = Translator(model, tokenizer, search=search, extra_length=extra_length)
if form == "ctranslate2":
    export_ctranslate2(translator, directory)
else:
    quantization = "int8" if form == "int8" else None
    export_saved_model(translator, directory, num_streams=THREADS, quantization=quantization)
print(json.dumps({"parameters": model.count_params()}))
