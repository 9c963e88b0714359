"""SavedModel: raw text in a process that knows only TensorFlow; in all signatures the Translator's
answers, whatever is beside a text; and the requests of docs/serving.md."""

import concurrent.futures
import contextlib
import json
import pathlib
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import json_format
from tensorflow.core.protobuf import saved_model_pb2

from keras_transformer.data.tokenizer import BOS_ID, EOS_ID
from keras_transformer.decoding import BeamSearch, search_from_dict
from keras_transformer.evaluation import attention_weights
from keras_transformer.export import export_saved_model
from keras_transformer.export.saved_model import warmup_texts
from keras_transformer.inference.translator import Translator
from keras_transformer.layouts import IN_SAVED_MODEL, WARMUP_FILE
from keras_transformer.serving.models import find_models
from keras_transformer.translation import signatures
from tests.closeness import assert_close
from tests.export.graph_operations import ALLOWED, operations
from tests.export.hostile import hostile_texts
from tests.serving.echo import serving
from tests.tiny_translator import sentence

TEXTS = [sentence(1 + seed % 12, seed) for seed in range(24)]
TRANSLATIONS = [sentence(seed % 7, 100 + seed) for seed in range(24)]
LONG, NORMAL = sentence(300, seed=3), sentence(5, seed=5)
MIXED = [b"", LONG.encode(), "😀🎉🏠".encode(), "红色的房子".encode(), b"\xff\xfe broken"]

# A process of its own, that has neither Keras nor this library.
CLIENT = """
import json, sys
import tensorflow as tf
import tensorflow_text

loaded = tf.saved_model.load(sys.argv[1])
assert not any(name.startswith("keras_transformer") for name in sys.modules)
texts = tf.constant([bytes.fromhex(text) for text in sys.argv[2:]])
answers = {}
for name, signature in loaded.signatures.items():
    inputs = dict.fromkeys(signature.structured_input_signature[1], texts)
    answers[name] = {key: value.numpy().tolist() for key, value in signature(**inputs).items()}
print(json.dumps(answers, default=bytes.decode))
"""


@pytest.fixture(scope="module")
def exported(translator, tmp_path_factory):
    """The directory of a SavedModel that works on more than a few texts in chunks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(signatures, "_MAX_TOKENS", 1_000)
        patch.setattr(Translator, "max_batch_tokens", 1_000)
        patch.setattr(signatures, "_MAX_NUMBERS", 100_000)
        return export_saved_model(translator, tmp_path_factory.mktemp("export") / "en_de" / "1")


@pytest.fixture(scope="module")
def loaded(exported):
    return tf.saved_model.load(exported)


def ask(loaded, signature, **inputs):
    """The outputs as NumPy arrays, text decoded (which raises unless it is UTF-8)."""
    inputs = {name: tf.constant(texts, tf.string) for name, texts in inputs.items()}
    outputs = loaded.signatures[signature](**inputs)
    arrays = {name: output.numpy() for name, output in outputs.items()}
    decode = np.vectorize(bytes.decode, otypes=[object])
    return {
        name: decode(array) if array.dtype == object and array.size else array
        for name, array in arrays.items()
    }


def test_a_fresh_process_answers_as_the_translator(exported, loaded, translator, tmp_path):
    command = [sys.executable, "-c", CLIENT, str(exported), *(text.hex() for text in MIXED)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    answers = json.loads(done.stdout.splitlines()[-1])
    texts = [text.decode("utf-8", "replace") for text in MIXED]
    expected = translator.hypotheses(texts, BeamSearch(n_best=4))
    found = answers["n_best"]["translations"], answers["n_best"]["scores"]
    for texts, scores, row in zip(*found, expected, strict=True):
        assert texts == [answer.text for answer in row] + [""] * (4 - len(row))
        assert_close(scores[: len(row)], [answer.score for answer in row], scale=1.0)
    best = answers["serving_default"]
    texts = [text.decode("utf-8", "replace") for text in MIXED]
    assert best["translation"] == translator.translate(texts) and best["translation"][0] == ""
    whole = [index for index, text in enumerate(texts) if len(translator.split(text)) == 1]
    assert len(whole) == len(texts) - 1  # LONG is split
    scores = [[of_all[index] for index in whole] for of_all in (best["score"], found[1])]
    assert_close(scores[0], [row[0] for row in scores[1]], scale=1.0)
    # The other signatures answer as in this process.
    for name in ("score", "attention", "limits"):
        names = loaded.signatures[name].structured_input_signature[1]
        for key, value in ask(loaded, name, **dict.fromkeys(names, MIXED)).items():
            if value.dtype == object:
                assert answers[name][key] == value.tolist()
            else:
                assert_close(answers[name][key], value, scale=1.0)


def test_parameters_are_stored_once_and_operations_are_those_of_any_server(exported, translator):
    stored = dict(tf.train.list_variables(str(exported / "variables" / "variables")))
    del stored["_CHECKPOINTABLE_OBJECT_GRAPH"]
    assert sum(map(np.prod, stored.values())) == translator.model.count_params()
    found = operations(exported)
    assert found - ALLOWED == set()
    # TensorFlow searches chunks at the same time only if their loops read no variables.
    assert "While" not in found


def test_scores_are_the_translators(loaded, translator):
    found = ask(loaded, "score", text=TEXTS, translation=TRANSLATIONS)
    tokenizer = translator.target_tokenizer
    for row, score in enumerate(translator.score(TEXTS, TRANSLATIONS)):
        assert_close(found["log_probability"][row], score.log_probability, scale=1.0)
        assert found["num_tokens"][row] == (number := score.num_tokens)
        assert found["tokens"][row, :number].tolist() == tokenizer.pieces(score.tokens)
        values = found["token_log_probabilities"][row]
        assert_close(values[:number], score.token_log_probabilities, scale=1.0)
        assert not values[number:].any() and not "".join(found["tokens"][row, number:])
    assert not found["truncated"].any()
    with pytest.raises(tf.errors.InvalidArgumentError, match="as many strings in each input"):
        ask(loaded, "score", text=TEXTS[:2], translation=TRANSLATIONS[:1])


def test_attention_is_that_of_the_last_but_one_block(loaded, translator):
    tokenizer, target_tokenizer = translator.source_tokenizer, translator.target_tokenizer
    texts, translations = [TEXTS[9], TEXTS[2]], ["the door", "a small blue bird sees"]
    found = ask(loaded, "attention", text=texts, translation=translations)
    for row, (text, translation) in enumerate(zip(texts, translations, strict=True)):
        source = [*tokenizer.encode(text), EOS_ID]
        target = [*target_tokenizer.encode(translation), EOS_ID]
        ids = np.array([source]), np.array([[BOS_ID, *target[:-1]]])
        expected = np.mean(translator.model.attention_scores(*ids)["cross"][-2], axis=1)[0]
        weights = found["attention"][row]
        padding = np.array(weights.shape) - expected.shape
        expected = np.pad(expected, [(0, number) for number in padding])
        # Scores of tens are rounded before the softmax takes their exponentials.
        assert_close(weights, expected, sum_length=16 * 1024)
        pieces = tokenizer.pieces(source) + [""] * padding[1]
        assert found["source_tokens"][row].tolist() == pieces


def test_limits_are_those_of_the_translator(loaded, translator):
    texts = ["", "a red door", sentence(60)]
    found = ask(loaded, "limits", text=texts)
    ids = translator.source_tokenizer.encode_batch(texts)
    assert found["num_tokens"].tolist() == [len(row) + 1 for row in ids]
    assert found["max_source_tokens"].tolist() == [40] * 3
    assert found["max_translation_tokens"].tolist() == [1, len(ids[1]) + 12, 39 + 12]
    assert found["truncated"].tolist() == [False, False, True]
    settings = json.loads(found["settings"][0])
    assert search_from_dict(settings["search"]) == translator.search
    assert settings["max_target_length"] == 52


def test_longer_text_is_cut_and_flagged(loaded, translator):
    expected = translator.hypotheses([LONG, NORMAL], BeamSearch(n_best=4))
    found = ask(loaded, "n_best", text=[LONG, NORMAL])
    assert found["truncated"].tolist() == [True, False]
    assert found["translations"].tolist() == [[answer.text for answer in row] for row in expected]
    found = ask(loaded, "score", text=[LONG, NORMAL], translation=[NORMAL, LONG])
    assert found["truncated"].tolist() == [True, True]
    assert found["num_tokens"].tolist()[1] == 52


def test_neighbors_and_padding_change_nothing(loaded):
    """Alone, with a long text, and in a batch: the same text and scores."""
    together = ask(loaded, "serving_default", text=TEXTS)
    for row, text in enumerate(TEXTS[:6]):
        for neighbors in ([], [LONG]):
            found = ask(loaded, "serving_default", text=[text, *neighbors])
            assert found["translation"][0] == together["translation"][row]
            assert_close(found["score"][0], together["score"][row], scale=1.0)


def test_every_output_has_a_row_for_every_text(loaded):
    """As a server's batching needs it, which joins requests and takes the answers apart."""
    for name, signature in loaded.signatures.items():
        keys = signature.structured_input_signature[1]
        for count in (0, 1, 5):
            inputs = dict.fromkeys(keys, tf.constant(TEXTS[:count], tf.string))
            for output in signature(**inputs).values():
                assert output.shape[0] == count, name
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"expected shape \[\?\]"):
            signature(**dict.fromkeys(keys, tf.fill([2, 1], "a dog")))


@pytest.mark.slow
def test_hostile_texts(loaded, translator):
    """None fails, every answer is UTF-8, and that of valid text is the Translator's."""
    texts, valid = hostile_texts(64), {}
    found = ask(loaded, "serving_default", text=texts)
    assert np.isfinite(found["score"]).all()
    pairs = {"text": texts, "translation": texts[::-1]}
    for name, output in (("score", "log_probability"), ("attention", "attention")):
        assert np.isfinite(ask(loaded, name, **pairs)[output]).all()
    for number, text in enumerate(texts):
        with contextlib.suppress(UnicodeDecodeError):
            valid[number] = text.decode("utf-8")
    # A word that is too long is cut here, and split by a `Translator`.
    whole = [number for number in valid if not found["truncated"][number]]
    assert 30 < len(whole) < len(valid)
    expected = translator.translate([valid[number] for number in whole])
    assert found["translation"][whole].tolist() == expected


@pytest.mark.slow
def test_threads_get_the_answers_of_one(loaded):
    expected = ask(loaded, "serving_default", text=TEXTS)["translation"].tolist()

    def answers(thread):
        texts = TEXTS[thread:] + TEXTS[:thread]
        return [ask(loaded, "serving_default", text=[text])["translation"][0] for text in texts]

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for thread, found in enumerate(pool.map(answers, range(8))):
            assert found == expected[thread:] + expected[:thread]


def test_the_model_directory_in_it_has_its_weights(exported, translator):
    inside = exported / IN_SAVED_MODEL
    pipelines = Translator.load(inside), translator
    found, expected = (attention_weights(pipeline, NORMAL, NORMAL) for pipeline in pipelines)
    assert (found.source, found.target) == (expected.source, expected.target)
    for kind in ("encoder", "decoder", "cross"):
        assert_close(getattr(found, kind), getattr(expected, kind))
    names = {path.name for path in inside.iterdir()}
    assert names == {"config.json", "source_tokenizer.model", "target_tokenizer.model"}


def test_warmup_requests_are_the_messages_of_tensorflow_serving(exported, translator):
    """Tags and lengths by hand, since tensorflow-serving-api may not be installed."""

    def field(number, payload):
        low, high = len(payload) & 127, len(payload) >> 7
        size = bytes([low | 128, high]) if high else bytes([low])
        return bytes([number << 3 | 2]) + size + payload

    [text], _ = warmup_texts(translator.source_tokenizer)
    tensor = tf.make_tensor_proto([text]).SerializeToString()
    spec = field(1, b"en_de") + field(3, b"serving_default")
    request = field(1, spec) + field(2, field(1, b"text") + field(2, tensor))
    first, *others = tf.data.TFRecordDataset(str(exported / WARMUP_FILE))
    assert first.numpy() == field(6, field(1, request))
    assert len(others) == 2 * 5 - 1  # a short text and a batch for each signature


PAGE = pathlib.Path(__file__).parents[2].joinpath("docs/serving.md").read_text("utf-8")
REST = re.findall(r"```bash\n(curl .*?)```(?:\n\n```json\n(.*?)```)?", PAGE, re.DOTALL)


def shape_of(value):
    """Nested lists of JSON as the shape and the kind of what is in them."""
    array = np.array(value)
    return array.ndim, "text" if array.dtype.kind == "U" else array.dtype.kind


@pytest.fixture(scope="module")
def curl(exported, loaded):
    """Runs a curl command of the page against a server of the SavedModel."""
    if shutil.which("curl") is None:
        pytest.skip("needs curl")
    model = find_models([str(exported)])["en_de"][1]
    with pytest.MonkeyPatch.context() as patch:  # it is loaded already
        patch.setattr(tf.saved_model, "load", lambda path: loaded)
        model.load()
    with serving(model) as client:

        def run(command):
            command = command.replace("http://localhost:8501/", f"http://127.0.0.1:{client.port}/")
            done = subprocess.run(["bash", "-c", command], capture_output=True, check=True)
            return json.loads(done.stdout)

        yield run


@pytest.mark.parametrize("command, shown", [pair for pair in REST if "predict" in pair[0]])
def test_rest_requests_and_answers(command, shown, curl, loaded):
    """The answers have the forms on the page, and the numbers of the SavedModel in Python."""
    request = json.loads(re.search(r"-d '(\{.*\})'", command, re.DOTALL)[1])
    shown, answer = json.loads(shown), curl(command)
    columns = request.get("inputs")
    if columns is None:
        rows = [row if isinstance(row, dict) else {"text": row} for row in request["instances"]]
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        shown, answer = (
            {name: [row[name] for row in rows["predictions"]] for name in rows["predictions"][0]}
            for rows in (shown, answer)
        )
    else:
        shown, answer = shown["outputs"], answer["outputs"]
    expected = ask(loaded, request.get("signature_name", "serving_default"), **columns)
    assert shown.keys() == answer.keys() == expected.keys()
    for name, value in expected.items():
        assert shape_of(shown[name]) == shape_of(answer[name]), name
        assert len(shown[name]) == len(answer[name])
        if value.dtype == object:
            assert answer[name] == value.tolist()
        else:
            assert_close(answer[name], value)


def test_status_and_metadata_are_those_of_the_saved_model(curl, exported):
    [(command, shown)] = [pair for pair in REST if "models/en_de\n" in pair[0]]
    assert curl(command) == json.loads(shown)
    [(command, _)] = [pair for pair in REST if "metadata" in pair[0]]
    answer = curl(command)
    assert answer["model_spec"] == {"name": "en_de", "signature_name": "", "version": "1"}
    content = saved_model_pb2.SavedModel.FromString((exported / "saved_model.pb").read_bytes())
    definitions = content.meta_graphs[0].signature_def
    shown = answer["metadata"]["signature_def"]["signature_def"]
    assert shown.keys() == {name for name in definitions if not name.startswith("__")}
    for name, signature in shown.items():
        expected = json_format.MessageToDict(
            definitions[name],
            preserving_proto_field_name=True,
            always_print_fields_with_no_presence=True,
        )
        assert signature["method_name"] == expected["method_name"]
        for side in ("inputs", "outputs"):
            # The names of tensors in the graph tell a client nothing.
            without = {key: {**one, "name": ""} for key, one in expected[side].items()}
            assert {k: {**one, "name": ""} for k, one in signature[side].items()} == without
