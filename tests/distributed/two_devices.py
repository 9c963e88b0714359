"""Two devices train what one device trains: losses, weights, clipping; only dropout differs.

`test_mirrored.py` runs these tests in a process of their own, because logical devices have to be
configured before TensorFlow starts.
"""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.data import PairsCorpus
from keras_transformer.errors import UserError
from keras_transformer.layers import Dropout
from keras_transformer.models import TrainingRecipe, Transformer, TransformerConfig
from keras_transformer.training import (
    FusedAdam,
    GlobalClipAdam,
    LabelSmoothedCrossEntropy,
    LossModel,
    Muon,
    TokenLoss,
    TrainingSettings,
    compile_model,
    mirrored_strategy,
    train,
)
from tests.closeness import assert_close

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 3
)
STRATEGY = mirrored_strategy(2)
SMALL = {
    "num_encoder_layers": 1,
    "num_decoder_layers": 1,
    "d_model": 8,
    "intermediate_dim": 16,
    "num_heads": 2,
    "dropout": 0.0,
}
VOCABULARY = 23
# Tokens of each row; a global batch is cut in the middle. The last has an odd number of rows.
BATCHES = {
    "even": [6, 6, 6, 6],
    "uneven": [9, 9, 1, 1],
    "nothing_on_the_second": [7, 5, 0, 0],
    "uneven_last_batch": [8, 7, 6, 5, 2],
}
L2 = keras.regularizers.L2(0.1)
EACH = [["even"], ["uneven"], ["nothing_on_the_second"]]
MIXED = ["uneven", "nothing_on_the_second", "even"]


def global_batch(generator, lengths):
    """A batch with the weights of `TokenBatches`: mask / tokens of the global batch."""
    lengths = np.array(lengths)
    rows, width = len(lengths), max(int(lengths.max()), 1)
    source = generator.integers(4, VOCABULARY, (rows, 5)).astype("int32")
    mask = np.arange(width) < lengths[:, None]
    labels = (generator.integers(4, VOCABULARY, (rows, width)) * mask).astype("int32")
    target = np.concatenate([np.full((rows, 1), 2), labels[:, :-1]], axis=1).astype("int32")
    weights = (mask / mask.sum()).astype("float32")
    return {"source": source, "target": target}, labels, weights


def train_on(model, batches):
    """Loss and loss per token of an epoch over the batches, by `fit`, and the weights after it."""
    ids = tf.TensorSpec([None, None], tf.int32)
    signature = ({"source": ids, "target": ids}, ids, tf.TensorSpec([None, None], tf.float32))
    dataset = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=signature)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    history = model.fit(dataset.with_options(options), verbose=0, shuffle=False).history
    losses = history["loss"][0], history.get("token_loss", history["loss"])[0]
    return losses, model.get_weights()


def largest_difference(ones, others):
    return max(float(np.abs(one - other).max()) for one, other in zip(ones, others, strict=True))


def make_model(config, dtype=None):
    return Transformer(TransformerConfig(**{**SMALL, "vocab_size": VOCABULARY, **config}), dtype)


def sgd():
    return keras.optimizers.SGD(0.5)


def clipping():
    # Adam divides by the size of tiny gradients: 1e-3 keeps rounding from becoming a sign.
    return GlobalClipAdam(0.01, beta_2=0.98, epsilon=1e-3, clip_norm=0.05)


def muon():
    return Muon(0.01, epsilon=1e-3, clip_norm=0.05)


def adam():
    return FusedAdam(0.01, epsilon=1e-3)


def check_equal(
    make_optimizer,
    epochs,
    micro_batches=1,
    dtype=None,
    r_drop=None,
    regularizer=None,
    target_vocab_size=None,
):
    """Trains one device and two for some epochs, lists of names of batches.

    Keras looks at the first batch of `fit`, and needs equal parts there. With `r_drop`, a
    `LossModel` is trained.
    """

    def build(**how):
        model = make_model({"target_vocab_size": target_vocab_size}, dtype)
        model.target_embedding.embeddings.regularizer = regularizer
        if r_drop is not None:
            model = LossModel(model, r_drop=r_drop)
            model.compile(make_optimizer(), **how)
        else:
            loss = LabelSmoothedCrossEntropy(0.1)
            model.compile(make_optimizer(), loss, weighted_metrics=[TokenLoss()], **how)
        return model

    one = build(run_eagerly=True)
    with STRATEGY.scope():
        two = build()
    two.set_weights(one.get_weights())
    two.micro_batches = micro_batches
    clips = isinstance(one.optimizer, GlobalClipAdam)
    for model in (one, two) if clips else ():
        model.optimizer.watch_gradient_norm(model)
    generator = np.random.default_rng(0)
    for names in epochs:
        batches = [global_batch(generator, BATCHES[name]) for name in names]
        before = one.get_weights()
        losses, weights = train_on(one, batches)
        losses_of_two, weights_of_two = train_on(two, batches)
        step, difference = (largest_difference(weights, w) for w in (before, weights_of_two))
        assert step > 1e-3
        if dtype is not None:
            # A gradient in two parts is rounded twice, to 8 bits.
            assert difference < 0.1 * step and abs(losses[1] - losses_of_two[1]) < 5e-3
            continue
        assert_close(difference, 0.0, sum_length=64, scale=1.0)
        assert_close(losses_of_two[1], losses[1], scale=1.0)
        if len({len(BATCHES[name]) for name in names}) == 1:
            # Keras weighs the loss that it displays by rows, which is not exact with uneven rows.
            assert_close(losses_of_two[0], losses[0], scale=1.0)
        if clips:
            norms = [float(model.optimizer.gradient_norm.numpy()) for model in (one, two)]
            assert norms[0] > 0.05  # Before the clipping.
            assert_close(norms[1], norms[0])


def test_losses_and_weights_equal_one_device():
    assert STRATEGY.num_replicas_in_sync == 2
    check_equal(sgd, EACH[:2])


def test_adam_squares_the_whole_gradient_of_an_embedding():
    """Not each use of a token, where the source has an embedding of its own."""
    check_equal(adam, EACH[:1], target_vocab_size=VOCABULARY)


@pytest.mark.slow
@pytest.mark.parametrize(
    "make_optimizer, epochs, options",
    [
        (sgd, [*EACH, ["even", "uneven_last_batch"]], {}),
        (sgd, EACH, {"r_drop": 5.0}),
        (clipping, EACH[:2], {"dtype": "mixed_bfloat16"}),
        (clipping, [MIXED], {"micro_batches": 2}),
        (muon, EACH[:2], {"micro_batches": 2}),
        (sgd, EACH[:1], {"micro_batches": 2, "regularizer": L2}),
        (sgd, EACH[:1], {"micro_batches": 2, "regularizer": L2, "r_drop": 0.0}),
    ],
)
def test_every_kind_of_step_equals_one_device(make_optimizer, epochs, options):
    check_equal(make_optimizer, epochs, **options)


class Scale(keras.layers.Layer):
    """`inputs * scale`: the gradient of the sum of what is kept shows which elements are."""

    def build(self, inputs_shape):
        self.scale = self.add_weight(shape=inputs_shape[-1:], initializer="ones", name="scale")

    def call(self, inputs):
        return inputs * self.scale


def test_replicas_drop_differently_in_fit():
    with STRATEGY.scope():
        inputs = keras.Input((1000,))
        scale = Scale()
        model = keras.Model(inputs, Dropout(0.5, seed=1)(scale(inputs)))
        # An element that is kept is doubled; its share in the mean of 1,000 is 2 / 1,000.
        optimizer = keras.optimizers.SGD(1000 / 2)
        model.compile(optimizer, loss=keras.losses.MeanAbsoluteError(reduction="sum"))
    ones = np.ones((2, 1000), "float32")  # One row for each replica.
    model.fit(ones, 0.0 * ones, batch_size=2, verbose=0)
    kept = np.bincount(np.rint(1.0 - scale.scale.numpy()).astype(int), minlength=3)
    # Independent halves: a quarter, a half, a quarter. Equal masks would leave none to one alone.
    assert 200 < kept[0] < 300 and 430 < kept[1] < 570 and 200 < kept[2] < 300


def test_jit_compile_on_several_replicas_says_what_to_do():
    with STRATEGY.scope(), pytest.raises(ValueError, match="Use jit_compile=False.*2 replicas"):
        compile_model(make_model({}), TrainingRecipe(), jit_compile=True)


def test_float16_on_several_replicas_is_refused():
    with STRATEGY.scope(), pytest.raises(ValueError, match='Use "mixed_bfloat16".*2 replicas'):
        compile_model(make_model({}, "mixed_float16"), TrainingRecipe())


def test_other_devices_than_before_or_than_there_are_are_refused():
    with pytest.raises(UserError, match="Asked for 4 devices, but this machine has no GPU"):
        mirrored_strategy(4)
    rule = "has used a strategy of the devices CPU:0, CPU:1, and can.*a strategy of "
    with pytest.raises(UserError, match=f"{rule}CPU:0, CPU:1, CPU:2"):
        mirrored_strategy(3)
    with tf.distribute.MirroredStrategy(["CPU:1", "CPU:2"]).scope():
        model = make_model({})
        with pytest.raises(UserError, match=f"{rule}CPU:1, CPU:2"):
            compile_model(model, TrainingRecipe())


@pytest.mark.slow
def test_train_equals_one_device_and_resumes(tmp_path):
    corpus = PairsCorpus([("a " * (n % 9 + 1), "b " * (n % 7 + 1)) for n in range(40)])
    recipe = {"tokens_per_batch": 80, "warmup_steps": 5, "peak_learning_rate": 1e-3}
    settings = TrainingSettings(
        preset="tiny",
        model=SMALL,
        recipe={**recipe, "ema_momentum": 0.5},
        tokenizer="subword",
        vocab_size=None,
        max_steps=4,
        evaluate_every=2,
        checkpoint_every=2,
        task_settings={"bleu_every": 1, "bleu_beam_size": 2},
    )
    two = dataclasses.replace(settings, gpus=2, micro_batches=2)
    histories = [
        train(tmp_path / name, corpus, corpus, of_name).history
        for name, of_name in (("one", settings), ("two", two))
    ]
    one, other = (
        np.array([(row["valid_loss"], row["valid_bleu"]) for row in rows], float)
        for rows in histories
    )
    assert len(one) == 2 and np.isfinite(one).all()
    assert_close(other[:, 0], one[:, 0])
    np.testing.assert_allclose(other[:, 1], one[:, 1], atol=1e-3)
    # The number of devices may change.
    changed = dataclasses.replace(two, max_steps=5, gpus=None)
    assert train(tmp_path / "two", corpus, corpus, changed).steps == 5
