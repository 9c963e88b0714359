"""Serves a CTranslate2 export with our server, in which it takes the part of our model.

Usage: serving_ctranslate2.py DIRECTORY COMPUTE_TYPE BEAM_SIZE MAX_BATCH_SIZE
"""

import socket
import sys
from pathlib import Path

import ctranslate2
import numpy as np
import sentencepiece
from text_setting import THREADS

from keras_transformer.serving import ServerSettings
from keras_transformer.serving.app import Server

directory, compute_type, beam_size, max_batch_size = sys.argv[1:]
engine = ctranslate2.Translator(
    directory, compute_type=compute_type, intra_threads=1, inter_threads=THREADS
)
path = Path(directory, "tokenizer.model")
pieces = sentencepiece.SentencePieceProcessor(model_file=str(path)) if path.exists() else None


class Signature:
    inputs = ("text",)

    def __call__(self, texts):
        lines = [text.decode() for text in texts["text"]]
        split = pieces.encode(lines, out_type=str) if pieces else [line.split() for line in lines]
        options = {"length_penalty": 0.45, "beam_size": int(beam_size)}
        if pieces is None:  # the answers have the lengths of the sources
            longest = max(map(len, split)) + 1
            options |= {"max_decoding_length": longest, "min_decoding_length": longest}
        results = engine.translate_batch(split, max_batch_size=64, **options)
        found = [result.hypotheses[0] for result in results]
        answers = [pieces.decode(tokens) if pieces else " ".join(tokens) for tokens in found]
        encoded = np.array([*[answer.encode() for answer in answers], None], object)[:-1]
        return {"translation": encoded, "truncated": np.zeros(len(lines), bool)}


class Model:
    name, version, pipeline, card = "model", 1, None, {}
    signatures = {"serving_default": Signature()}


settings = ServerSettings(
    streams=THREADS, max_batch_size=int(max_batch_size), request_timeout=600.0
)
server = Server({"model": {1: Model()}}, settings)
# asyncio sends small packets at once only where the protocol is written out.
listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
listener.bind(("127.0.0.1", 0))
listener.listen()
sys.stderr.write(f"http://127.0.0.1:{listener.getsockname()[1]}/\n")
sys.stderr.flush()
server.http_server().run(sockets=[listener])
