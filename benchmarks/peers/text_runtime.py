"""Measures a greedy search with an export, from text to text, in batches of sorted lines.

For LiteRT and ONNX, the search is the loop of docs/runtimes.md.
pip install ai-edge-litert ctranslate2 onnxruntime
Usage: text_runtime.py DIRECTORY litert|onnx|ctranslate2 SOURCE REFERENCE
"""

import sys
from pathlib import Path

import numpy as np
from text_setting import BATCH, THREADS, measure

from keras_transformer.data.tokenizer import BOS_ID, EOS_ID
from keras_transformer.data.tokenizer_pair import TokenizerPair

EXTRA_LENGTH = 50  # of an answer, beyond the length of its source


def litert(directory):
    """Returns the functions `encode` and `decode` of an export, and the shapes of the inputs."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=f"{directory}/model.tflite", num_threads=THREADS)
    runners = [interpreter.get_signature_runner(name) for name in ("encode", "decode")]
    details = runners[1].get_input_details()
    return *runners, {name: detail["shape_signature"] for name, detail in details.items()}


def onnx(directory):
    """Returns the functions `encode` and `decode` of an export, and the shapes of the inputs."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    sessions = [
        onnxruntime.InferenceSession(f"{directory}/{name}.onnx", options)
        for name in ("encode", "decode")
    ]

    def function(session):
        names = [output.name for output in session.get_outputs()]
        return lambda **inputs: dict(zip(names, session.run(None, inputs), strict=True))

    shapes = {value.name: value.shape for value in sessions[1].get_inputs()}
    return *map(function, sessions), shapes


def greedy_search(encode, decode, shapes, ids):
    """Returns the ids of the answers to a batch of sources."""
    ids = [[*row, EOS_ID] for row in ids]
    source = np.zeros((len(ids), max(map(len, ids))), "int32")
    for row, sentence in zip(source, ids, strict=True):
        row[: len(sentence)] = sentence
    limits = np.array([len(sentence) - 1 + EXTRA_LENGTH for sentence in ids])
    encoded = encode(source=source)
    caches = {
        name: np.zeros((len(ids), shape[1], 0, shape[3]), "float32")
        for name, shape in shapes.items()
        if name.startswith("self_")
    }
    tokens, answers = np.full(len(ids), BOS_ID, "int32"), []
    is_done = np.zeros(len(ids), bool)
    while not is_done.all():
        outputs = decode(tokens=tokens, **encoded, **caches)
        caches = {name: outputs[f"new_{name}"] for name in caches}
        tokens = np.where(is_done, 0, outputs["logits"].argmax(-1)).astype("int32")
        answers.append(tokens)
        is_done |= (tokens == EOS_ID) | (len(answers) >= limits)
    return np.stack(answers, axis=1).tolist()


def ctranslate2_search(directory, source_tokenizer, target_tokenizer):
    """Returns the function from the ids of a batch of sources to those of the answers."""
    import ctranslate2

    # Computes in the type in which the weights are saved.
    engine = ctranslate2.Translator(directory, intra_threads=THREADS)
    pieces = target_tokenizer.pieces(range(target_tokenizer.vocab_size))
    id_of = {piece: number for number, piece in enumerate(pieces)}

    def search(ids):
        results = engine.translate_batch(
            [source_tokenizer.pieces(row) for row in ids],
            beam_size=1,
            min_decoding_length=0,
            max_decoding_length=max(map(len, ids)) + EXTRA_LENGTH,
        )
        return [[id_of[piece] for piece in result.hypotheses[0]] for result in results]

    return search


directory, runtime, source, reference = sys.argv[1:]
is_shared = not list(Path(directory).glob("source_tokenizer.*"))
tokenizers = TokenizerPair.load(directory, is_shared)
if runtime == "ctranslate2":
    search = ctranslate2_search(directory, tokenizers.source, tokenizers.of_target)
else:
    functions = {"litert": litert, "onnx": onnx}[runtime](directory)

    def search(ids):
        return greedy_search(*functions, ids)


def translate(lines):
    ids = tokenizers.source.encode_batch(lines)
    order = sorted(range(len(ids)), key=lambda number: len(ids[number]))
    answers = [[]] * len(ids)
    for start in range(0, len(order), BATCH):
        numbers = order[start : start + BATCH]
        found = search([ids[number] for number in numbers])
        for number, answer in zip(numbers, found, strict=True):
            answers[number] = answer
    return tokenizers.of_target.decode_batch(answers)


measure(translate, source, reference)
