"""ONNX and LiteRT: their runtimes give our logits and answers from the exported folder alone."""

import keras
import numpy as np
import pytest
import sentencepiece

from keras_transformer.errors import UserError
from keras_transformer.export import export
from tests.export.models import BOS_ID, EOS_ID, SLOW_CONFIGS, TEXTS, random_translator

pytestmark = pytest.mark.tensorflow_only("they are written there")
PACKAGES = {"onnx": ("onnx", "tf2onnx", "onnxruntime"), "litert": ("ai_edge_litert.interpreter",)}
FILES = {"onnx": {"encode.onnx", "decode.onnx", "weights.bin"}, "litert": {"model.tflite"}}
# Besides `SLOW_CONFIGS`; the first has loops, which are left out.
UNEQUAL = [{"position": x, "key_dim": 6, "value_dim": 10} for x in ("rotary", "relative")]
CONFIGS = {"remat": True, "flash_attention": True}, {"key_dim": 4}, *UNEQUAL


class OnnxRuntime:
    """The two files, loaded by onnxruntime: named arrays to named arrays."""

    def __init__(self, directory):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.encoder = onnxruntime.InferenceSession(directory / "encode.onnx", options)
        self.decoder = onnxruntime.InferenceSession(directory / "decode.onnx", options)
        self.shapes = {value.name: value.shape for value in self.decoder.get_inputs()}

    def encode(self, **inputs):
        return self._run(self.encoder, inputs)

    def decode(self, **inputs):
        return self._run(self.decoder, inputs)

    def _run(self, session, inputs):
        names = [output.name for output in session.get_outputs()]
        return dict(zip(names, session.run(None, inputs), strict=True))


class LitertRuntime:
    """The two signatures of the file: named arrays to named arrays."""

    def __init__(self, directory):
        from ai_edge_litert.interpreter import Interpreter

        self._interpreter = Interpreter(model_path=f"{directory}/model.tflite", num_threads=1)
        self.encode = self._interpreter.get_signature_runner("encode")
        self.decode = self._interpreter.get_signature_runner("decode")
        details = self.decode.get_input_details()
        self.shapes = {name: detail["shape_signature"] for name, detail in details.items()}


# Of float32's size, and greatest difference of the logits, in relation to their norm.
QUANTIZED = {("onnx", "int8"): (0.3, 0.2), ("litert", "int8"): (0.3, 0.2)}
QUANTIZED["litert", "float16"] = (0.55, 0.01)
RUNTIMES = {"onnx": OnnxRuntime, "litert": LitertRuntime}


@pytest.fixture(scope="module", params=["onnx", "litert"])
def name(request):
    for package in PACKAGES[request.param]:
        pytest.importorskip(package, reason=f"pip install {package}")
    return request.param


@pytest.fixture(scope="module")
def directory(name, greedy_translator, tmp_path_factory):
    return export(greedy_translator, tmp_path_factory.mktemp("export") / "m", name)


def empty_caches(runtime, rows):
    return {
        name: np.zeros((rows, shape[1], 0, shape[3]), "float32")
        for name, shape in runtime.shapes.items()
        if name.startswith("self_")
    }


def check_logits(runtime, translator, limit=1e-5):
    """Cached steps of a runtime give the logits of the whole model, padding and beams included."""
    generator = np.random.default_rng(3)
    source = generator.integers(4, 320, (2, 7)).astype("int32")
    source[0, -1] = source[1, 3] = EOS_ID
    source[1, 4:] = 0
    target = generator.integers(4, 320, (4, 6)).astype("int32")  # two rows for each source
    target[:, 0] = BOS_ID
    encoded, caches, logits = runtime.encode(source=source), empty_caches(runtime, len(target)), []
    for tokens in target.T:
        outputs = runtime.decode(tokens=tokens, **encoded, **caches)
        caches = {name: outputs[f"new_{name}"] for name in caches}
        logits.append(outputs["logits"])
    expected = translator.model({"source": np.repeat(source, 2, axis=0), "target": target})
    difference = np.linalg.norm(np.stack(logits, axis=1) - expected)
    assert difference < limit * np.linalg.norm(expected)


def test_logits_are_the_models(name, directory, greedy_translator):
    check_logits(RUNTIMES[name](directory), greedy_translator)


@pytest.mark.slow
@pytest.mark.parametrize("config", [*SLOW_CONFIGS, *CONFIGS], ids=str)
def test_every_kind_of_model(name, config, tmp_path):
    translator = random_translator(**config)
    check_logits(RUNTIMES[name](export(translator, tmp_path / "m", name)), translator)


def stored(matrix, quantization):
    """The bytes of a matrix in an export; int8 with a scale for each row."""
    if quantization == "float16":
        return matrix.astype("float16").tobytes()
    return (
        np.rint(matrix / (np.abs(matrix).max(axis=1, keepdims=True) / 127)).astype("int8").tobytes()
    )


@pytest.mark.parametrize("quantization", ["int8", pytest.param("float16", marks=pytest.mark.slow)])
def test_quantized_weights_are_small_and_logits_are_close(name, quantization, tmp_path):
    if (name, quantization) not in QUANTIZED:
        pytest.skip(f"there is no {name} in {quantization}")
    share, limit = QUANTIZED[name, quantization]
    # Larger than the graph, which takes some 60 kB.
    translator = random_translator(d_model=128, intermediate_dim=1024, output_bias=True)
    directory = export(translator, tmp_path / "m", name, quantization=quantization)
    check_logits(RUNTIMES[name](directory), translator, limit)
    contents = [(directory / file).read_bytes() for file in FILES[name]]
    assert sum(map(len, contents)) < share * 4 * translator.model.count_params()
    matrix = keras.ops.convert_to_numpy(translator.model.target_embedding.embeddings)
    # Stored once for encoder, decoder and projection.
    assert sum(content.count(stored(matrix, quantization)) for content in contents) == 1


def test_greedy_answers_are_the_translators(name, directory, greedy_translator):
    """In one padded batch, with the exported folder's tokenizer."""
    runtime = RUNTIMES[name](directory)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(directory / "tokenizer.model"))
    ids = processor.encode(TEXTS)
    limits = np.array(greedy_translator.max_lengths(np.array([len(row) for row in ids])))
    source = np.zeros((len(ids), max(map(len, ids)) + 1), "int32")
    for row, sentence_ids in zip(source, ids, strict=True):
        row[: len(sentence_ids) + 1] = [*sentence_ids, EOS_ID]

    encoded, caches = runtime.encode(source=source), empty_caches(runtime, len(source))
    tokens = np.full(len(source), BOS_ID, "int32")
    found = [[] for _ in ids]
    for length in range(1, max(limits) + 1):
        outputs = runtime.decode(tokens=tokens, **encoded, **caches)
        caches = {name: outputs[f"new_{name}"] for name in caches}
        tokens = outputs["logits"].argmax(-1).astype("int32")
        for answer, token, limit in zip(found, tokens.tolist(), limits, strict=True):
            if length <= limit and EOS_ID not in answer:
                answer.append(token)
    answers = greedy_translator.translate(TEXTS)
    assert len(set(answers)) > 5
    assert [processor.decode([i for i in answer if i != EOS_ID]) for answer in found] == answers


def test_a_sliding_window_is_refused(name, tmp_path):
    with pytest.raises(UserError, match="no sliding window; .* Received: sliding_window=3"):
        export(random_translator(sliding_window=3), tmp_path / "m", name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["onnx"], indirect=True)
def test_onnx_stores_weights_once_and_names_dynamic_lengths(name, directory, greedy_translator):
    import onnx

    sizes = {}  # by offset
    for part in ("encode", "decode"):
        model = onnx.load(directory / f"{part}.onnx", load_external_data=False)
        for tensor in model.graph.initializer:
            if entries := {entry.key: entry.value for entry in tensor.external_data}:
                assert entries["location"] == "weights.bin"
                sizes[int(entries["offset"])] = int(entries["length"])
    matrices = [w.shape for w in greedy_translator.model.weights if len(w.shape) == 2]
    assert sum(sizes.values()) == 4 * sum(int(np.prod(shape)) for shape in matrices)
    shapes = OnnxRuntime(directory).shapes
    assert shapes["tokens"] == ["rows"]
    assert shapes["source_mask"] == ["batch", "source_length"]
    assert shapes["self_value_0"] == ["rows", 4, "target_length", 8]
