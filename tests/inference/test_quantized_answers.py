"""Answers of models that are quantized at loading or in an export: those of Keras' own products."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import Parser, Translator
from keras_transformer.decoding import BeamSearch, GreedySearch, Sampling
from keras_transformer.errors import UserError
from keras_transformer.export import export_saved_model
from keras_transformer.inference import Glossary, Shortlist
from keras_transformer.inference.tasks import get_task
from keras_transformer.layers import int8_products
from keras_transformer.layers.composite_layer import quantized_parts
from keras_transformer.layers.effective_weights import all_maps, effective_matrix
from keras_transformer.layers.int8_products import (
    LARGEST_WEIGHT,
    has_int8_product,
    quantize_maps,
)
from keras_transformer.layouts import IN_SAVED_MODEL
from keras_transformer.models import Ensemble
from tests.export.graph_operations import operations
from tests.tiny_parser import tiny_parser
from tests.tiny_translator import sentence, tiny_model, tiny_tokenizer, tiny_translator

TEXTS = [sentence(1 + seed % 9, seed) for seed in range(6)]
IS_TENSORFLOW = keras.backend.backend() == "tensorflow"
if IS_TENSORFLOW:
    import tensorflow as tf
    import tensorflow_text  # noqa: F401


def _ensemble():
    return Translator(Ensemble([tiny_model(1), tiny_model(2)]), tiny_tokenizer(), extra_length=12)


def _with(**overrides):
    return lambda: Translator(tiny_model(**overrides), tiny_tokenizer(), extra_length=12)


def _with_lora():
    translator = tiny_translator()
    for block in translator.model.decoder.blocks:
        block.feed_forward.inner_dense.enable_lora(2)
        dense = block.feed_forward.inner_dense
        for factor in (dense.lora_kernel_a, dense.lora_kernel_b):
            factor.assign(np.random.default_rng(0).normal(size=factor.shape))
    return translator


def _with_shortlist():
    translator = tiny_translator()
    size = translator.model.config.vocab_size
    translator.shortlist = Shortlist(
        np.full((size, 2), 290, "int32"), np.arange(280, dtype="int32"), size, checksum=0
    )
    return translator


def _with_glossary():
    translator = tiny_translator()
    translator.glossary = Glossary({"dog": "Hund", "red": "rot"})
    return translator


CELLS = {
    "beam": (tiny_translator, BeamSearch(3)),
    "greedy": (tiny_translator, GreedySearch()),
    "sampling": (tiny_translator, Sampling(seed=3)),
    "ensemble": (_ensemble, BeamSearch(2)),
    "shortlist": (_with_shortlist, GreedySearch()),
    "glossary": (_with_glossary, BeamSearch(2)),
    "lora": (_with_lora, GreedySearch()),
    "two tables": (_with(target_vocab_size=320, output_bias=True), GreedySearch()),
    "biases": (_with(use_bias=True, norm="pre"), GreedySearch()),
    "relative positions": (_with(position="relative"), BeamSearch(2)),
    "window": (_with(sliding_window=4), GreedySearch()),
    "parser": (tiny_parser, BeamSearch(2)),
}
# Others compile searches that differ little from these.
_DEFAULT = ("beam", "ensemble", "lora")


def _ask(pipeline, search):
    """Returns the texts and the scores of the answers."""
    if isinstance(pipeline, Parser):
        return [str(tree) for tree in pipeline.parse(TEXTS, search=search)], [0.0]
    best = [answers[0] for answers in pipeline.hypotheses(TEXTS, search=search)]
    return [answer.text for answer in best], [answer.score for answer in best]


@pytest.mark.parametrize(
    "cell",
    [pytest.param(c, marks=() if c in _DEFAULT else pytest.mark.slow) for c in CELLS],
)
def test_answers_are_those_of_keras_products(cell, tmp_path, monkeypatch):
    make, search = CELLS[cell]
    pipeline, plain = make(), make()
    pipeline.quantize()
    quantize_maps(all_maps(plain.model))
    assert bool(pipeline._inference._kernels) == has_int8_product()
    products, product = [], int8_products._product
    monkeypatch.setattr(
        int8_products, "_product", lambda *given: products.append(given) or product(*given)
    )
    texts, scores = _ask(pipeline, search)
    assert bool(products) == has_int8_product()
    expected_texts, expected_scores = _ask(plain, search)
    assert texts == expected_texts
    # An error of rounding can move an input of a product to the next of 255 integers.
    np.testing.assert_allclose(scores, expected_scores, rtol=2e-3)
    # An export merges LoRA before it quantizes.
    if IS_TENSORFLOW and not search.is_random and cell != "lora":
        functions = get_task(pipeline.task).served_functions
        signature = {"serving_default": functions.inputs["serving_default"]}
        monkeypatch.setattr(functions, "inputs", signature)
        export_saved_model(make(), tmp_path / "1", search, quantization="int8")
        served = tf.saved_model.load(tmp_path / "1").signatures["serving_default"]
        [name] = {"translation", "tree"} & {*(outputs := served(text=tf.constant(TEXTS)))}
        assert [text.decode() for text in outputs[name].numpy()] == texts
        assert ("_QuantizedMatMul" in operations(tmp_path / "1")) == has_int8_product()
        assert not (tmp_path / "1" / IN_SAVED_MODEL).exists()


def test_quantization_of_a_loaded_model(tmp_path):
    tiny_translator().save(tmp_path)
    translator = Translator.load(tmp_path)
    translator.quantize()
    modes = {part["mode"] for part in quantized_parts(translator.model).values()}
    assert modes == {"int8"}
    expected = tiny_translator()
    expected.quantize()
    assert translator.translate(TEXTS) == expected.translate(TEXTS)
    with pytest.raises(UserError, match="cannot hold a quantized model"):
        translator.save(tmp_path)


def test_a_model_from_a_file_and_one_that_has_answered_have_the_fast_product(tmp_path, monkeypatch):
    first = tiny_translator()
    first.quantize()
    first.model.save(tmp_path / "model.keras")
    model = keras.saving.load_model(tmp_path / "model.keras")
    second = Translator(model, tiny_tokenizer(), extra_length=12)
    expected = second.translate(TEXTS)  # with Keras' product
    second.quantize()
    products, product = [], int8_products._product
    monkeypatch.setattr(
        int8_products, "_product", lambda *given: products.append(given) or product(*given)
    )
    assert second.translate(TEXTS) == expected
    assert bool(products) == has_int8_product()


def test_a_slow_product_is_warned_of(monkeypatch, caplog):
    monkeypatch.setattr(int8_products, "has_int8_product", lambda: False)
    tiny_translator().quantize()
    assert "here it is slow" in caplog.text


def test_quantized_matrices_stay_near_their_weights():
    translator, plain = tiny_translator(), tiny_translator()
    translator.quantize()
    for part, own in zip(all_maps(translator.model), all_maps(plain.model), strict=True):
        matrix, rounded = (ops.convert_to_numpy(effective_matrix(p)) for p in (own, part))
        step, difference = np.abs(matrix).max() / LARGEST_WEIGHT, np.abs(matrix - rounded).max()
        assert 0 < difference <= 0.51 * step
