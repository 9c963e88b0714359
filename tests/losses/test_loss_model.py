"""A `LossModel` is the Transformer with its loss, packed or not, with R-Drop or not."""

import keras
import numpy as np
import pytest

from keras_transformer.data import TokenBatches
from keras_transformer.losses import loss_model
from keras_transformer.models import TrainingRecipe, Transformer, TransformerConfig
from keras_transformer.training import (
    LabelSmoothedCrossEntropy,
    LossModel,
    TokenLoss,
    compile_model,
)
from tests.closeness import assert_all_close, assert_close
from tests.data.test_token_batches import encode
from tests.layers.oracle_parameters import array
from tests.oracle import loss as oracle
from tests.precision.gradients import has_float64, value_and_gradients
from tests.training.uncompiled import RUN_EAGERLY

RNG = np.random.default_rng(11)
VOCAB = 23
RECIPE = TrainingRecipe(peak_learning_rate=5e-3, warmup_steps=2)


def small(dtype="float32", **overrides):
    keras.utils.set_random_seed(5)
    sizes = {"d_model": 16, "intermediate_dim": 24, "num_heads": 2, "dropout": 0.0}
    sizes |= {"num_encoder_layers": 1, "num_decoder_layers": 1, **overrides}
    return Transformer(TransformerConfig(VOCAB, **sizes), dtype=dtype)


def sentences(number, longest=7):
    """Pairs of ids without EOS."""
    lengths = RNG.integers(1, longest, (number, 2))
    return [(RNG.integers(5, 19, s), RNG.integers(5, 19, t)) for s, t in lengths]


def corpus_of(pairs):
    return encode(pairs, np.uint16)


def only_batch(corpus, packed_width=None):
    sizes = {"row_multiple": 1, "packed_width": packed_width, "max_shapes": 1}
    [batch] = TokenBatches(corpus, 4096, **sizes).batches(0)
    return batch


def token_losses(model, inputs, labels, training=False):
    return model.token_losses(model(inputs, training=training), labels, training)


def loss_and_gradients(model, batch, compiles=False):
    """Returns the summed loss and the gradient of every weight, by name, of one step of SGD."""
    before = {weight.path: array(weight) for weight in model.trainable_weights}
    how = {"run_eagerly": RUN_EAGERLY and not compiles, "jit_compile": False}
    loss = None if isinstance(model, LossModel) else LabelSmoothedCrossEntropy(0.1)
    model.compile(keras.optimizers.SGD(1.0), loss, **how)
    loss = float(model.train_on_batch(*batch))
    after = {weight.path: array(weight) for weight in model.trainable_weights}
    model.set_weights([before.get(weight.path, array(weight)) for weight in model.weights])
    return loss, {path: before[path] - after[path] for path in before}


def check_equal(found, expected, dtype="float32"):
    assert_close(found[0], expected[0])  # Keras keeps the loss of a step in float32.
    assert found[1].keys() == expected[1].keys()
    for path, gradient in expected[1].items():  # The difference of weights of up to 1.
        assert_close(found[1][path], gradient, dtype, sum_length=64, scale=1.0, err_msg=path)


@pytest.mark.parametrize("slices, config", [
    ("one", {"output_bias": True}), ("several", {"target_vocab_size": 19, "norm": "pre"}),
    *(pytest.param(*case, marks=pytest.mark.slow) for case in (
        ("one", {}), ("several", {"output_bias": True}))),
])  # fmt: skip
def test_loss_and_gradient_are_those_of_logits_and_loss(monkeypatch, slices, config):
    if slices == "several":
        monkeypatch.setattr(loss_model, "LOGITS_BYTES", 4 * VOCAB * 5)  # 5 tokens each
    batch = only_batch(corpus_of(sentences(9)))
    model = small(**config)
    expected = loss_and_gradients(model, batch)
    found = loss_and_gradients(LossModel(model), batch, compiles=not config)
    check_equal(found, expected)


@pytest.mark.parametrize("parts", [
    "whole",
    "logits",
    pytest.param(
        "in parts", marks=[pytest.mark.slow, pytest.mark.tensorflow_only("steps in parts")]
    ),
])  # fmt: skip
def test_without_weights_the_loss_is_the_mean_over_all_but_padding(parts):
    """The weights of `TokenBatches` are those of this mean."""
    inputs, labels, weights = only_batch(corpus_of(sentences(8)))
    assert 0 < (labels == 0).sum() < labels.size
    model = small()
    if parts != "logits":
        model = LossModel(model)
    expected = loss_and_gradients(model, (inputs, labels, weights))
    if parts == "in parts":
        model.micro_batches, model.streams = 2, 2
    check_equal(loss_and_gradients(model, (inputs, labels), compiles=parts == "in parts"), expected)
    value = model.evaluate(inputs, labels, batch_size=len(labels), verbose=0)
    assert_close(value, expected[0])


@pytest.mark.slow
def test_any_sample_weights_have_the_gradient_of_logits_and_loss(monkeypatch):
    """Where the gradient cannot be made with the loss, since tokens count differently."""
    dtype = "float64" if has_float64() else "float32"
    monkeypatch.setattr(loss_model, "LOGITS_BYTES", 4 * VOCAB * 5)
    inputs, labels, weights = only_batch(corpus_of(sentences(9)))
    weights = weights * RNG.random(weights.shape).astype("float32")
    model = small(dtype)
    expected = loss_and_gradients(model, (inputs, labels, weights))
    found = loss_and_gradients(LossModel(model), (inputs, labels, weights))
    check_equal(found, expected, dtype)


@pytest.mark.parametrize("shape, r_drop", [((0, 3), 0.0), ((2, 0), 1.0)])
def test_no_tokens_have_no_losses(shape, r_drop):
    model = LossModel(small(), r_drop=r_drop)
    ids = np.ones(shape, "int32")
    inputs = dict.fromkeys(model.input, ids)
    for training in (False, True):
        assert tuple(token_losses(model, inputs, ids, training).shape) == shape
    logits = np.zeros((*shape, VOCAB), "float32")
    assert float(TokenLoss()(ids, logits, np.ones(shape, "float32"))) == 0.0


def test_every_token_has_its_loss_and_padding_has_none():
    inputs, labels, _ = only_batch(corpus_of(sentences(6)))
    model = small()
    logits = model(inputs)
    expected = LabelSmoothedCrossEntropy(0.1, reduction="none")(labels, logits)
    expected = np.where(labels != 0, array(expected), 0.0)
    assert_close(array(token_losses(LossModel(model), inputs, labels)), expected)


def test_packed_rows_have_the_loss_and_gradient_of_single_rows():
    corpus = corpus_of(sentences(20))
    longest = max(corpus.source_lengths.max(), corpus.target_lengths.max())
    model = small(position="learned", max_length=int(longest))  # Rows may be wider.
    packed = only_batch(corpus, packed_width=24)
    packed[0].update({name: np.pad(ids, [(0, 1), (0, 0)]) for name, ids in packed[0].items()})
    packed = packed[0], *(np.pad(array, [(0, 1), (0, 0)]) for array in packed[1:])
    assert longest < 24 and packed[0]["source_segments"].max() > 2
    expected = loss_and_gradients(LossModel(model), only_batch(corpus))
    found = loss_and_gradients(LossModel(model, packed=True), packed)
    check_equal(found, expected)


def test_nothing_leaks_from_one_segment_to_another():
    """Other tokens in segment 2, of source or target, change the losses of segment 2 alone."""
    model = LossModel(small(), packed=True)
    inputs, labels, _ = only_batch(corpus_of(sentences(12)), packed_width=48)
    before = array(token_losses(model, inputs, labels))
    for changed in ("source", "target"):
        segments = inputs[f"{changed}_segments"]
        others = np.where(segments == 2, 5 + (inputs[changed] + 1) % 14, inputs[changed])
        changed_inputs = {**inputs, changed: others.astype("int32")}
        after = array(token_losses(model, changed_inputs, labels))
        differs = after != before
        assert differs[inputs["target_segments"] == 2].any()
        assert not differs[inputs["target_segments"] != 2].any()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_it_trains_in_mixed_precision_and_reloads(tmp_path, dtype):
    model = LossModel(small(dtype), packed=True, r_drop=2.0)
    batch = only_batch(corpus_of(sentences(20)), packed_width=24)
    compile_model(model, RECIPE)
    scales_loss = isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    assert scales_loss == (dtype == "mixed_float16")
    losses = [float(model.train_on_batch(*batch)) for _ in range(40)]
    assert losses[-1] < 0.8 * losses[0]
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(array(again(batch[0])), array(model(batch[0])))
    assert again.r_drop == 2.0 and again.dtype_policy.name == dtype


@pytest.mark.slow
@pytest.mark.tensorflow_only("XLA as an option")
@pytest.mark.parametrize(("packed_width", "micro_batches"), [(None, 2), (24, 1)])
def test_xla_takes_batches_of_several_shapes(packed_width, micro_batches):
    """A data set whose batches differ in shape tells the step no length."""
    sizes = {"tokens_per_batch": 64, "row_multiple": 2, "max_shapes": 2}
    batches = TokenBatches(corpus_of(sentences(40)), packed_width=packed_width, **sizes)
    packed = packed_width is not None
    histories = []
    for jit_compile in (False, True):
        model = LossModel(small(), packed=packed)
        model.micro_batches = micro_batches
        compile_model(model, RECIPE, jit_compile=jit_compile)
        dataset = batches.dataset()
        history = model.fit(dataset, steps_per_epoch=4, shuffle=False, verbose=0)
        histories.append([*history.history["loss"], *map(array, model.weights)])
    assert_all_close(*histories)


def test_weights_in_float16_are_refused():
    with pytest.raises(ValueError, match='"mixed_float16". Received: .* of dtype float16'):
        compile_model(LossModel(small("float16")), RECIPE)
    assert compile_model(LossModel(small("bfloat16")), RECIPE).optimizer.built


def test_weights_of_sentences_are_refused():
    model, ids = LossModel(small()), np.ones((4, 4), "int32")
    model.compile("sgd")
    with pytest.raises(ValueError, match=r"`sample_weight` must have the shape \[batch or 1, len"):
        model.fit({"source": ids, "target": ids}, ids, sample_weight=np.ones(4), verbose=0)


def test_labels_of_another_shape_are_refused_or_squeezed():
    model, ids = LossModel(small()), np.ones((2, 4), "int32")
    states = model({"source": ids, "target": ids})
    expected = array(model.compute_loss(y=ids, y_pred=states, training=False))
    found = model.compute_loss(y=ids[..., None], y_pred=states, training=False)
    assert_close(array(found), expected)
    for length in (3, 5):
        labels = np.ones((2, length), "int32")
        with pytest.raises(ValueError, match=r"`y` must have the shape \[batch, length\]"):
            model.compute_loss(y=labels, y_pred=states, training=False)


def test_it_takes_no_other_loss_and_no_metrics_of_logits():
    with pytest.raises(ValueError, match="a loss of its own.* Received: .*weighted_metrics="):
        LossModel(small()).compile(weighted_metrics=[TokenLoss()])


def test_wrong_arguments_are_named():
    for name, value in (("packed", 1), ("label_smoothing", 1.0), ("r_drop", -1)):
        with pytest.raises(ValueError, match=f"`{name}` must be"):
            LossModel(small(), **{name: value})


ROWS, LENGTH, WIDTH, ALPHA = 3, 4, 16, 5.0


def oracle_losses(states, embeddings, labels):
    """`[ROWS, LENGTH]`; the two passes of a row of labels follow each other."""
    first, second = (states[start::2] @ embeddings.T for start in (0, 1))
    return np.where(labels != 0, oracle.r_drop(labels, first, second, 0.1, ALPHA), 0.0)


def slopes(function, at, step=1e-5):
    """The gradient of a function of one array, by central differences."""
    gradient = np.zeros_like(at)
    for index in np.ndindex(at.shape):
        change = np.zeros_like(at)
        change[index] = step
        gradient[index] = (function(at + change) - function(at - change)) / (2 * step)
    return gradient


@pytest.mark.parametrize("slices, equal_factors", [("one", False), ("several", True)])
def test_loss_and_gradient_are_those_of_equation_4(monkeypatch, slices, equal_factors):
    if slices == "several":
        monkeypatch.setattr(loss_model, "LOGITS_BYTES", 2 * 4 * VOCAB * 4)  # 4 tokens each
    numbers = RNG.normal(size=(2 * ROWS, LENGTH, WIDTH)), RNG.normal(size=(VOCAB, WIDTH))
    labels = RNG.integers(1, VOCAB, (ROWS, LENGTH)).astype("int32")
    labels[0, 2:] = 0
    factors = np.ones(labels.shape) if equal_factors else RNG.random(labels.shape)
    states = keras.Variable(numbers[0].astype("float32"))
    model = LossModel(small(), r_drop=ALPHA)
    embeddings = model.transformer.target_embedding.embeddings
    embeddings.assign(numbers[1])

    def weighted_sum():
        losses = model.token_losses(keras.ops.convert_to_tensor(states), labels, training=True)
        return keras.ops.sum(losses * keras.ops.convert_to_tensor(factors, "float32"))

    value, gradients = value_and_gradients(weighted_sum, [states, embeddings])

    def oracle_sum(states, embeddings):
        return (factors * oracle_losses(states, embeddings, labels)).sum()

    assert_close(value, oracle_sum(*numbers))
    of_states = slopes(lambda x: oracle_sum(x, numbers[1]), numbers[0])
    of_embeddings = slopes(lambda x: oracle_sum(numbers[0], x), numbers[1])
    assert_close(gradients[0], of_states)
    assert_close(gradients[1], of_embeddings)


def test_the_two_passes_drop_differently_and_only_in_training():
    batch = only_batch(corpus_of(sentences(9)))
    inputs, labels, _ = batch
    losses, answers = {}, {}
    for alpha in (1e-6, 5.0):
        model = LossModel(small(dropout=0.3), r_drop=alpha)
        answers[alpha] = array(token_losses(model, inputs, labels))
        losses[alpha] = array(token_losses(model, inputs, labels, training=True))
        assert losses[alpha].shape == labels.shape
    plain = array(token_losses(LossModel(small(dropout=0.3)), inputs, labels))
    for alpha in losses:
        np.testing.assert_array_equal(answers[alpha], plain)
    # The same seeds drop the same, so that only the divergences differ.
    assert (losses[5.0] > losses[1e-6] + 1e-4)[labels != 0].all()
