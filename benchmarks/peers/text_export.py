"""Exports a trained translator for text_saved_model.py or text_ctranslate2.py.

Usage: text_export.py MODEL DIRECTORY FORMAT BEAM_SIZE PATIENCE, FORMAT: bfloat16 or ctranslate2
"""

import json
import sys

from text_setting import THREADS, load_translator, make_search

from keras_transformer.export import export_ctranslate2, export_saved_model

model, directory, form, beam_size, patience = sys.argv[1:]
translator = load_translator(model)
if form == "ctranslate2":
    export_ctranslate2(translator, directory)
else:
    search = make_search(beam_size, patience)
    export_saved_model(translator, directory, search=search, dtype=form, num_streams=THREADS)
print(json.dumps({"parameters": translator.model.count_params()}))
