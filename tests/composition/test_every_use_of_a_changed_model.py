"""Quantized models and models with LoRA: each loss, score, search, export, bridge and file answers
as the model does, or refuses it in one line.

A use is a function that gets a translator, whose model was changed after the translator was made
and used, and returns an array and what the model itself gives: NumPy, from its logits.
"""

import functools

import keras
import numpy as np
import pytest

from keras_transformer import TrainingRecipe, bridges
from keras_transformer.decoding import GreedySearch
from keras_transformer.errors import UserError
from keras_transformer.export import export
from keras_transformer.inference.translator import Translator
from keras_transformer.layers import Encoder, EncoderBlock
from keras_transformer.layers.effective_weights import is_plain, maps_of, plain_copy
from keras_transformer.models import Ensemble
from keras_transformer.training import (
    LossModel,
    TokenEvaluator,
    average_checkpoints,
    compile_model,
    load_weights_only,
    save_weights_only,
)
from tests.closeness import assert_close
from tests.composition.answers import answer
from tests.composition.test_quantization_and_lora import changed, nothing_is_collected  # noqa: F401
from tests.tiny_parser import tiny_parser
from tests.tiny_translator import sentence, tiny_model, tiny_tokenizer

TEXTS, TRANSLATIONS = ([sentence(3 + n, seed + n) for n in range(3)] for seed in (0, 50))
FORMS = ["none", "int8", "int4", "float8", "lora", "int8 lora"]


@functools.cache
def rows():
    """Source, target and labels of the pairs, int32 `[3, length]`."""
    sources, targets = ([*map(tiny_tokenizer().encode, texts)] for texts in (TEXTS, TRANSLATIONS))
    inputs = [[*row, 3] for row in sources], [[2, *row] for row in targets]
    ids = *inputs, [[*row, 3] for row in targets]
    return [keras.utils.pad_sequences(side, padding="post") for side in ids]


def make_translator():
    model = tiny_model(norm="post", output_bias=True, use_bias=True)
    for weight in model.weights:
        weight.assign(weight * 0.4)
    return new_translator(model)


def new_translator(model):
    return Translator(model, tiny_tokenizer(), search=GreedySearch(), extra_length=8)


def model_logits(model):
    source, target, _ = rows()
    return keras.ops.convert_to_numpy(model({"source": source, "target": target}))


def without_padding(*logits):
    return [values[rows()[2] != 0] for values in logits]


def token_losses(logits):
    """NumPy's cross-entropy of the labels, `[3, length]`, 0 on padding."""
    labels = rows()[2]
    logits = logits.astype("float64") - logits.max(axis=-1, keepdims=True)
    losses = np.log(np.exp(logits).sum(axis=-1))
    losses -= np.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    return np.where(labels == 0, 0.0, losses)


def sentence_scores(model):
    return -token_losses(model_logits(model)).sum(axis=1)


def score_of(translator):
    return [score.log_probability for score in translator.score(TEXTS, TRANSLATIONS)]


# Uses of a model in this process.


def translator_score(translator, folder):
    return score_of(translator), sentence_scores(translator.model)


def translator_search(translator, folder):
    def found(translator):
        return [hypotheses[0] for hypotheses in translator.hypotheses(TEXTS)]

    answers, expected = found(translator), found(new_translator(translator.model))
    assert [answer.text for answer in answers] == [answer.text for answer in expected]
    return [answer.score for answer in answers], [answer.score for answer in expected]


def translator_align(translator, folder):
    def attention(translator):
        return np.concatenate([a.attention.ravel() for a in translator.align(TEXTS, TRANSLATIONS)])

    return attention(translator), attention(new_translator(translator.model))


def loss_model(translator, folder):
    source, target, labels = rows()
    model = LossModel(translator.model, label_smoothing=0.0)
    losses = model.token_losses(model({"source": source, "target": target}), labels)
    return keras.ops.convert_to_numpy(losses), token_losses(model_logits(translator.model))


def loss_model_made_before(translator, folder):
    """It was compiled before the model changed."""
    source, target, labels = rows()
    model = translator.loss_model
    states = model.predict({"source": source, "target": target}, verbose=0)
    losses = keras.ops.convert_to_numpy(model.token_losses(states, labels))
    return losses, token_losses(model_logits(translator.model))


def compiled_loss(translator, folder):
    source, target, labels = rows()
    weights = (labels != 0) / np.sum(labels != 0)
    model = compile_model(translator.model, TrainingRecipe(label_smoothing=0.0))
    loss = model.evaluate(
        {"source": source, "target": target}, labels, sample_weight=weights, verbose=0
    )
    return loss, np.sum(token_losses(model_logits(model)) * weights)


def token_evaluator(translator, folder):
    source, target, labels = rows()
    batch = {"source": source, "target": target}, labels, (labels != 0).astype("float32")
    losses = token_losses(model_logits(translator.model))
    return translator.evaluator([batch]).loss, losses.sum() / (labels != 0).sum()


def predict(translator, folder):
    source, target, _ = rows()
    logits = translator.model.predict({"source": source, "target": target}, verbose=0)
    return logits, model_logits(translator.model)


def ensemble(translator, folder):
    other = Translator(Ensemble([translator.model] * 2), tiny_tokenizer())
    return score_of(other), sentence_scores(translator.model)


# Files.


def keras_file(translator, folder):
    translator.model.save(folder / "model.keras")
    model = keras.saving.load_model(folder / "model.keras")
    return model_logits(model), model_logits(translator.model)


def weights_file(translator, folder, average=False):
    path, source = folder / "model.weights.h5", translator.model
    save_weights_only(source, path)
    if average:
        path = average_checkpoints([path, path], folder / "mean.weights.h5")
    model = tiny_model(norm="post", output_bias=True, use_bias=True)
    changed(model, translator.form.replace("lora", ""))
    load_weights_only(model, path)
    return model_logits(model), model_logits(source)


def averaged_files(translator, folder):
    return weights_file(translator, folder, average=True)


def model_directory(translator, folder):
    translator.save(folder / "model")
    return score_of(Translator.load(folder / "model")), sentence_scores(translator.model)


# Exports and bridges.


def saved_model(translator, folder):
    import tensorflow as tf

    from keras_transformer.translation.signatures import TranslatorFunctions

    inputs = {"score": TranslatorFunctions.inputs["score"]}
    with pytest.MonkeyPatch.context() as patch:  # One signature takes less time.
        patch.setattr(TranslatorFunctions, "inputs", inputs)
        loaded = tf.saved_model.load(export(translator, folder / "saved" / "1"))
    scores = loaded.signatures["score"](
        text=tf.constant(TEXTS), translation=tf.constant(TRANSLATIONS)
    )
    return scores["log_probability"], sentence_scores(translator.model)


def keras_export(translator, folder):
    import tensorflow as tf

    source, target, _ = rows()
    translator.model.export(folder / "exported", verbose=False)
    loaded = tf.saved_model.load(folder / "exported")
    inputs = {"source": tf.constant(source), "target": tf.constant(target)}
    return loaded.serve(inputs), model_logits(translator.model)


def ctranslate2(translator, folder):
    ctranslate2 = pytest.importorskip("ctranslate2", reason="pip install ctranslate2")
    export(translator, folder / "m", "ctranslate2")
    peer = ctranslate2.Translator(str(folder / "m"), compute_type="float32")
    tokenizer = translator.source_tokenizer
    pieces = [
        [tokenizer.pieces(tokenizer.encode(text)) for text in texts]
        for texts in (TEXTS, TRANSLATIONS)
    ]
    scores = [sum(score.log_probs) for score in peer.score_batch(*pieces)]
    return scores, sentence_scores(translator.model)


def transformers(translator, folder):
    from tests.export.transformers_peer import TransformersPeer

    peer = TransformersPeer(export(translator, folder / "m", "transformers"))
    scores = map(sum, peer.log_probabilities(TEXTS, TRANSLATIONS))
    return [*scores], sentence_scores(translator.model)


def runtime(name, translator, folder):
    from tests.export.test_runtimes import PACKAGES, RUNTIMES, empty_caches

    for package in PACKAGES[name]:
        pytest.importorskip(package, reason=f"pip install {package}")
    peer = RUNTIMES[name](export(translator, folder / "m", name))
    source, target, _ = rows()
    encoded, caches, logits = peer.encode(source=source), empty_caches(peer, len(target)), []
    for tokens in target.T:
        outputs = peer.decode(tokens=np.ascontiguousarray(tokens), **encoded, **caches)
        caches = {key: outputs[f"new_{key}"] for key in caches}
        logits.append(outputs["logits"])
    return without_padding(np.stack(logits, axis=1), model_logits(translator.model))


def onnx(translator, folder):
    return runtime("onnx", translator, folder)


def litert(translator, folder):
    return runtime("litert", translator, folder)


def to_marian(translator, folder):
    torch = pytest.importorskip("torch", reason="pip install torch")
    pytest.importorskip("transformers", reason="pip install transformers")
    source, target, _ = map(torch.tensor, rows())
    marian = bridges.to_marian(translator.model)
    logits = marian(source, attention_mask=source != 0, decoder_input_ids=target).logits
    return without_padding(logits.detach().numpy(), model_logits(translator.model))


def to_torch(translator, folder):
    torch = pytest.importorskip("torch", reason="pip install torch")
    states = np.random.default_rng(0).normal(size=(2, 5, 32)).astype("float32")
    block = translator.model.encoder.blocks[0]
    outputs = bridges.to_torch(block)(torch.tensor(states)).detach().numpy()
    return outputs, keras.ops.convert_to_numpy(block(states))


def to_keras_hub(translator, folder):
    pytest.importorskip("keras_hub", reason="pip install keras-hub")
    states = np.random.default_rng(0).normal(size=(2, 5, 32)).astype("float32")
    block = translator.model.encoder.blocks[0]
    outputs = bridges.to_keras_hub(block)(states)
    return keras.ops.convert_to_numpy(outputs), keras.ops.convert_to_numpy(block(states))


def to_keras(translator, folder):
    states = np.random.default_rng(0).normal(size=(2, 5, 32)).astype("float32")
    attention = translator.model.encoder.blocks[0].attention
    outputs = bridges.to_keras(attention)(states, states)
    return keras.ops.convert_to_numpy(outputs), keras.ops.convert_to_numpy(
        attention(states, states)
    )


def test_a_copy_keeps_parts_of_the_same_name_apart():
    """And the groups of a matrix in int4, each with a scale and a zero."""
    stack = Encoder([EncoderBlock(2, 16, name="block") for _ in range(2)])
    states = np.random.default_rng(0).normal(size=(2, 3, 8)).astype("float32")
    before = answer(stack, states)
    dense = stack.blocks[1].feed_forward.inner_dense
    dense.quantize("int4", config=keras.quantizers.Int4QuantizationConfig(block_size=4))
    expected = answer(stack, states)
    assert np.abs(expected - before).max() > 0.01
    copy = plain_copy(stack)
    assert copy is not stack and all(is_plain(part) for _, part in maps_of(copy))
    assert_close(answer(copy, states), expected)


@pytest.mark.parametrize("form", ["int4", "lora"])
def test_a_parser_follows_its_model(form):
    parser = tiny_parser(search=GreedySearch(), extra_length=8)
    texts = TEXTS[:1]
    before = parser.parses(texts)[0][0].score
    changed(parser.model, form)
    after = parser.parses(texts)[0][0].score
    new = tiny_parser(model=parser.model, search=GreedySearch(), extra_length=8)
    assert before != after == new.parses(texts)[0][0].score


IN_PROCESS = [translator_score, translator_search, translator_align, loss_model, compiled_loss]
IN_PROCESS += [loss_model_made_before, token_evaluator, predict, ensemble]
FILES = [keras_file, weights_file, averaged_files, model_directory]
TENSORFLOW_ONLY = [saved_model, keras_export, onnx, litert]
OTHER_PROGRAMS = [ctranslate2, transformers, onnx, litert, to_marian, to_torch]
OTHER_PROGRAMS += [to_keras_hub, to_keras]
USES = [*IN_PROCESS, *FILES, saved_model, keras_export, *OTHER_PROGRAMS]

# Greatest difference in relation to the largest number: of other kernels, unless it is named here.
LIMIT = 1e-5
# Another order of sums may move an input at the border of two integers to the other one.
ONE_INTEGER = 1e-3
# Other programs get float weights, and do not round the inputs of products to int8 or float8.
ROUNDED_INPUTS = {"int8": 0.08, "int8 lora": 0.08, "float8": 0.3}
# Keras saves the sum of integers and factors as integers.
ROUNDED_AGAIN = 0.1
QUANTIZED = {"int8", "int4", "float8", "int8 lora"}
REFUSED = {
    model_directory: (QUANTIZED, "A model directory cannot hold a quantized model"),
    averaged_files: (QUANTIZED - {"float8"}, "The weights of a quantized model have no mean"),
}
QUICK = {
    *((translator_score, "int8"), (translator_search, "lora"), (token_evaluator, "int8")),
    *((loss_model, "int4"), (loss_model, "int8 lora"), (loss_model_made_before, "int8")),
    *((predict, "lora"), (averaged_files, "int8"), (saved_model, "lora"), (to_torch, "int8")),
    *((saved_model, "int8 lora"), (ctranslate2, "int8"), (to_marian, "lora"), (to_keras, "int4")),
}


@pytest.mark.parametrize("use, form", [
    pytest.param(use, form, marks=() if (use, form) in QUICK else pytest.mark.slow)
    for use in USES for form in FORMS
])  # fmt: skip
def test_every_use_answers_as_the_model_or_refuses(use, form, tmp_path):
    if use in TENSORFLOW_ONLY and keras.backend.backend() != "tensorflow":
        pytest.skip("it is written on TensorFlow")
    translator = make_translator()
    translator.form = form
    if use in (loss_model_made_before, token_evaluator):
        translator.loss_model = LossModel(translator.model, label_smoothing=0.0)
        compile_model(translator.loss_model, TrainingRecipe())
        translator.evaluator = TokenEvaluator(translator.model)
    if use in IN_PROCESS:
        use(translator, tmp_path)  # What is compiled now must not answer later.
    changed(translator.model, form)
    forms, message = REFUSED.get(use, ((), ""))
    if form in forms:
        with pytest.raises(UserError, match=message):
            use(translator, tmp_path)
        return
    got, expected = map(np.asarray, use(translator, tmp_path))
    limit = ONE_INTEGER if form in QUANTIZED else LIMIT
    limit = ROUNDED_INPUTS.get(form, limit) if use in OTHER_PROGRAMS else limit
    if use in FILES and form == "int8 lora":
        limit = ROUNDED_AGAIN
    assert np.abs(got - expected).max() <= limit * np.abs(expected).max()
