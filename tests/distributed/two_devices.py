"""Runs in a process of its own, on two of three logical CPU devices; prints measurements as JSON.

`python two_devices.py few` measures what the default tests need, `all` the rest.

Logical devices must be configured before TensorFlow starts, so a test process cannot do it.
"""

import dataclasses
import json
import sys
import tempfile

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.data import PairsCorpus
from keras_transformer.errors import UserError
from keras_transformer.layers import Dropout
from keras_transformer.models import TrainingRecipe, Transformer, TransformerConfig
from keras_transformer.training import (
    GlobalClipAdam,
    LabelSmoothedCrossEntropy,
    LossModel,
    TokenLoss,
    TrainingSettings,
    compile_model,
    mirrored_strategy,
    train,
)

SMALL = {
    "num_encoder_layers": 1,
    "num_decoder_layers": 1,
    "d_model": 8,
    "intermediate_dim": 16,
    "num_heads": 2,
    "dropout": 0.0,
}
VOCABULARY = 23


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


# Tokens of each row; a global batch is cut in the middle. The last has an odd number of rows.
BATCHES = {
    "even": [6, 6, 6, 6],
    "uneven": [9, 9, 1, 1],
    "nothing_on_the_second": [7, 5, 0, 0],
    "uneven_last_batch": [8, 7, 6, 5, 2],
}


def train_on(model, batches, weighted=True):
    """Loss and loss per token of an epoch over the batches, by `fit`, and the weights after it."""
    ids = tf.TensorSpec([None, None], tf.int32)
    signature = ({"source": ids, "target": ids}, ids, tf.TensorSpec([None, None], tf.float32))
    dataset = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=signature)
    if not weighted:
        dataset = dataset.map(lambda inputs, labels, weights: (inputs, labels))
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    history = model.fit(dataset.with_options(options), verbose=0, shuffle=False).history
    token_loss = history.get("token_loss", history["loss"])[0]
    return (history["loss"][0], token_loss), model.get_weights()


def compare(
    strategy, make_optimizer, epochs, micro_batches=1, dtype=None, r_drop=None, weighted=True
):
    """Differences of one device and two after each epoch, from the same first weights.

    An epoch is a list of names of batches. Keras looks at the first batch of `fit`, and needs
    equal parts there. With `r_drop`, a `LossModel` is trained.
    """
    keras.utils.set_random_seed(0)  # The first weights depend on no other measurement.
    config = TransformerConfig.from_dict({**SMALL, "vocab_size": VOCABULARY})

    def build():
        model = Transformer(config, dtype=dtype)
        if r_drop is not None:
            model = LossModel(model, r_drop=r_drop)
            model.compile(make_optimizer())
            return model
        model.compile(
            make_optimizer(), LabelSmoothedCrossEntropy(0.1), weighted_metrics=[TokenLoss()]
        )
        return model

    one = build()
    with strategy.scope():
        two = build()
    two.set_weights(one.get_weights())
    two.micro_batches = micro_batches
    watches = isinstance(one.optimizer, GlobalClipAdam)
    for model in (one, two) if watches else ():
        model.optimizer.watch_gradient_norm(model)
    generator = np.random.default_rng(0)
    differences = []
    for names in epochs:
        batches = [global_batch(generator, BATCHES[name]) for name in names]
        before = one.get_weights()
        losses_one, weights_one = train_on(one, batches, weighted)
        losses_two, weights_two = train_on(two, batches, weighted)
        pairs = zip(weights_one, weights_two, strict=True)
        steps = zip(weights_one, before, strict=True)
        differences.append(
            {
                "loss": abs(losses_one[0] - losses_two[0]),
                "token_loss": abs(losses_one[1] - losses_two[1]),
                "weights": max(float(np.abs(first - second).max()) for first, second in pairs),
                "step": max(float(np.abs(after - first).max()) for after, first in steps),
            }
        )
        if watches:
            norms = [float(model.optimizer.gradient_norm.numpy()) for model in (one, two)]
            differences[-1]["gradient_norms"] = norms
    return differences


def dropout_masks(strategy):
    """Share of positions in which the masks of two replicas are equal, twice in a row."""
    with strategy.scope():
        layer = Dropout(0.5, seed=1)

    @tf.function
    def draw():
        return strategy.run(lambda: layer(tf.ones((1000,)), training=True))

    draws = [strategy.experimental_local_results(draw()) for _ in range(2)]
    return [float(np.mean(first.numpy() == second.numpy())) for first, second in draws]


class Scale(keras.layers.Layer):
    """`inputs * scale`: the gradient of the sum of what is kept shows which elements are."""

    def build(self, inputs_shape):
        self.scale = self.add_weight(shape=inputs_shape[-1:], initializer="ones", name="scale")

    def call(self, inputs):
        return inputs * self.scale


def kept_in_fit(strategy):
    """Of 1,000 elements, how many 0, 1 and 2 replicas kept in a step of `fit`, at rate 0.5."""
    with strategy.scope():
        inputs = keras.Input((1000,))
        scale = Scale()
        model = keras.Model(inputs, Dropout(0.5, seed=1)(scale(inputs)))
        # An element that is kept is doubled; its share in the mean of 1,000 is 2 / 1,000.
        optimizer = keras.optimizers.SGD(1000 / 2)
        model.compile(optimizer, loss=keras.losses.MeanAbsoluteError(reduction="sum"))
    ones = np.ones((2, 1000), "float32")  # One row for each replica.
    model.fit(ones, 0.0 * ones, batch_size=2, verbose=0)
    return np.bincount(np.rint(1.0 - scale.scale.numpy()).astype(int), minlength=3).tolist()


def recomputed(strategy):
    """Greatest difference of the weights with and without recomputation, after two steps."""
    batches = [global_batch(np.random.default_rng(4), BATCHES["uneven"]) for _ in range(2)]
    found = []
    for remat in (True, False):
        keras.utils.set_random_seed(6)
        with strategy.scope():
            config = TransformerConfig(
                **{**SMALL, "dropout": 0.5}, vocab_size=VOCABULARY, remat=remat
            )
            model = LossModel(Transformer(config))
            model.compile(keras.optimizers.SGD(0.5))
        found.append(train_on(model, batches)[-1])
    pairs = zip(*found, strict=True)
    return max(float(np.abs(one - other).max()) for one, other in pairs)


def jit_error(strategy):
    with strategy.scope():
        model = Transformer(TransformerConfig.from_dict({**SMALL, "vocab_size": VOCABULARY}))
        try:
            compile_model(model, TrainingRecipe(), jit_compile=True)
        except ValueError as error:
            return str(error)


def refusal(make_strategy):
    try:
        with make_strategy().scope():
            model = Transformer(TransformerConfig.from_dict({**SMALL, "vocab_size": VOCABULARY}))
            compile_model(model, TrainingRecipe())
    except UserError as error:
        return str(error)


def whole_training():
    """`train` on two devices against one; the texts are of every length."""
    corpus = PairsCorpus([("a " * (n % 9 + 1), "b " * (n % 7 + 1)) for n in range(40)])
    results = []
    for gpus in (None, 2):
        directory = tempfile.mkdtemp()
        settings = TrainingSettings(
            preset="tiny",
            model=SMALL,
            recipe={
                "tokens_per_batch": 80,
                "warmup_steps": 5,
                "peak_learning_rate": 1e-3,
                "ema_momentum": 0.5,
            },
            tokenizer="subword",
            vocab_size=None,
            max_steps=4,
            evaluate_every=2,
            checkpoint_every=2,
            task_settings={"bleu_every": 1, "bleu_beam_size": 2},
            gpus=gpus,
            micro_batches=gpus or 1,
        )
        result = train(directory, corpus, corpus, settings)
        results.append([(row["valid_loss"], row["valid_bleu"]) for row in result.history])
    # The number of devices may change.
    changed = dataclasses.replace(settings, max_steps=5, gpus=None)
    resumed = train(directory, corpus, corpus, changed)
    return {"evaluations": results, "resumed_steps": resumed.steps}


def few(strategy):
    return {
        "replicas": strategy.num_replicas_in_sync,
        "sgd": compare(strategy, lambda: keras.optimizers.SGD(0.5), [["even"], ["uneven"]]),
        "dropout": dropout_masks(strategy),
        "jit_error": jit_error(strategy),
        "too_many": refusal(lambda: mirrored_strategy(4)),
        "another_number": refusal(lambda: mirrored_strategy(3)),
        "other_devices": refusal(lambda: tf.distribute.MirroredStrategy(["CPU:1", "CPU:2"])),
    }


def everything(strategy):
    # Adam divides by the size of tiny gradients: 1e-3 keeps rounding from becoming a sign.
    adam = {"beta_2": 0.98, "epsilon": 1e-3, "clip_norm": 0.05}
    averages = {"use_ema": True, "ema_momentum": 0.5}

    def sgd():
        return keras.optimizers.SGD(0.5)

    def clipping(**options):
        return GlobalClipAdam(0.01, **adam, **options)

    each = [["even"], ["uneven"], ["nothing_on_the_second"]]
    mixed = ["even", "uneven", "nothing_on_the_second"]
    return {
        "sgd": compare(strategy, sgd, [*each, ["even", "uneven_last_batch"]]),
        "losses": compare(strategy, sgd, each, r_drop=0.0),
        "r_drop": compare(strategy, sgd, each, r_drop=5.0),
        "unweighted": compare(strategy, sgd, [["even"]], r_drop=0.0, weighted=False),
        "mixed": compare(strategy, clipping, each[:2], dtype="mixed_bfloat16"),
        "clipped": compare(strategy, clipping, [mixed[1:]]),
        "in_parts": compare(strategy, clipping, [mixed], micro_batches=2),
        # `fit` ends with the moving average as the weights.
        "averaged": compare(strategy, lambda: clipping(**averages), [[*mixed[1:], "even"]]),
        "recomputed": recomputed(strategy),
        "kept_in_fit": kept_in_fit(strategy),
        "train": whole_training(),
    }


def main():
    devices = tf.config.list_physical_devices("CPU")
    logical = [tf.config.LogicalDeviceConfiguration()] * 3
    tf.config.set_logical_device_configuration(devices[0], logical)
    tf.config.set_visible_devices([], "GPU")
    tf.get_logger().setLevel("ERROR")
    keras.utils.set_random_seed(0)
    measure = {"few": few, "all": everything}[sys.argv[1]]
    json.dump(measure(mirrored_strategy(2)), sys.stdout)


if __name__ == "__main__":
    main()
