"""Keras' own `Model.export` of models that are made of our layers, in every format of Keras."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers import MultiHeadAttention
from keras_transformer.training import LossModel
from tests.closeness import assert_close
from tests.composition.answers import answer, tiny_transformer
from tests.composition.test_decoder_only_language_model import LanguageModel
from tests.composition.test_encoder_only_classifier import make_classifier

pytestmark = pytest.mark.tensorflow_only("the formats of `Model.export`")

IDS = np.array([[5, 6, 7, 3], [9, 3, 0, 0], [4, 4, 3, 0]], "int32")


@keras.saving.register_keras_serializable(package="test_export")
class Tagger(keras.Model):
    """A subclassed model: attention among Keras' own layers, with dropout."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.embedding = keras.layers.Embedding(12, 16)
        self.attention = MultiHeadAttention(num_heads=2, key_dim=8, dropout=0.1)
        self.head = keras.layers.Dense(3)

    def call(self, tokens, training=None):
        states = self.embedding(tokens)
        mask = ops.expand_dims(ops.not_equal(tokens, 0), 1)
        states = self.attention(states, states, attention_mask=mask, training=training)
        return self.head(states)


MODELS = {
    "classifier": (make_classifier, IDS),
    "subclassed_language_model": (LanguageModel, IDS),
    "tagger": (Tagger, IDS),
    "transformer": (tiny_transformer, {"source": IDS, "target": IDS}),
    "pre_norm_learned_transformer": (
        lambda: tiny_transformer(
            norm="pre", position="learned", max_length=8, use_bias=True, embedding_norm=True
        ),
        {"source": IDS, "target": IDS},
    ),
    "loss_model": (
        lambda: LossModel(tiny_transformer()),
        {"source": IDS, "target": IDS},
    ),
}


def export(model, path, **kwargs):
    """Keras does not know the dtype and the free axes of the inputs of a subclassed model."""
    is_subclassed = type(model) in (LanguageModel, Tagger)
    signature = [keras.InputSpec(shape=(None, None), dtype="int32")] if is_subclassed else None
    model.export(str(path), input_signature=signature, verbose=False, **kwargs)


def first_rows(inputs, rows, length):
    return keras.tree.map_structure(lambda array: array[:rows, :length], inputs)


# One of each kind: functional and subclassed.
FAST = ("classifier", "tagger")


@pytest.fixture(
    params=[pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in MODELS]
)
def model_and_inputs(request):
    make, inputs = MODELS[request.param]
    keras.utils.set_random_seed(1)
    model = make()
    answer(model, inputs)  # Builds the subclassed ones.
    return model, inputs


def test_a_saved_model_answers_the_same(model_and_inputs, tmp_path):
    import tensorflow as tf

    model, inputs = model_and_inputs
    export(model, tmp_path / "export", format="tf_saved_model")
    exported = tf.saved_model.load(str(tmp_path / "export"))
    for some in (inputs, first_rows(inputs, 1, 4), first_rows(inputs, 2, 3)):
        assert_close(exported.serve(some), answer(model, some))


def run_onnx(path):
    """Returns a function of the flat inputs to the outputs, by their names in order."""
    session = pytest.importorskip("onnxruntime", reason="needs '.[onnx]'").InferenceSession(path)
    names = [one.name for one in session.get_inputs()]
    return lambda values: session.run(None, dict(zip(names, values, strict=True)))


def run_litert(path):
    from ai_edge_litert.interpreter import Interpreter

    runner = Interpreter(path).get_signature_runner()
    names = sorted(runner.get_input_details())
    return lambda values: list(runner(**dict(zip(names, values, strict=True))).values())


@pytest.mark.slow
@pytest.mark.parametrize("name, package, run", [
    ("onnx", "tf2onnx", run_onnx), ("litert", "ai_edge_litert", run_litert),
])  # fmt: skip
def test_another_runtime_answers_the_same(name, package, run, model_and_inputs, tmp_path):
    pytest.importorskip(package, reason=f"needs '.[{name}]'")
    model, inputs = model_and_inputs
    if isinstance(model, LossModel):
        pytest.skip("the converters know no loop over slices of tokens; it is for training")
    path = str(tmp_path / {"onnx": "model.onnx", "litert": "model.tflite"}[name])
    export(model, path, format=name)
    function = run(path)
    for some in (inputs, first_rows(inputs, 2, 3)):
        [outputs] = function(keras.tree.flatten(some))
        assert_close(outputs, answer(model, some))
