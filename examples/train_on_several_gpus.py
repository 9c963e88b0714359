"""Trains on several GPUs with `fit` and `tf.distribute.MirroredStrategy`.

The result is the same as on one device with the same batches: the weights of `TokenBatches` are
1 / (number of tokens in the global batch), and the loss is a sum. Without GPUs, the script uses two
logical CPU devices.

    python examples/train_on_several_gpus.py
"""

import argparse

import keras
import tensorflow as tf

from keras_transformer import Transformer, get_preset
from keras_transformer.data import EncodedCorpus, PairsCorpus, TokenBatches, train_sentencepiece
from keras_transformer.quickstart import number_corpus
from keras_transformer.training import compile_model, mirrored_strategy


def main():
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    if not tf.config.list_physical_devices("GPU"):
        two_devices = [tf.config.LogicalDeviceConfiguration()] * 2
        tf.config.set_logical_device_configuration(
            tf.config.list_physical_devices("CPU")[0], two_devices
        )
    keras.utils.set_random_seed(1)
    pairs, _, _ = number_corpus(num_train=2_000, num_valid=10, num_test=10)
    tokenizer = train_sentencepiece((text for pair in pairs for text in pair), vocab_size=500)
    encoded = EncodedCorpus.from_corpus(PairsCorpus(pairs), tokenizer)

    num_devices = len(tf.config.list_physical_devices("GPU")) or 2
    strategy = mirrored_strategy(num_devices)
    batches = TokenBatches(encoded, tokens_per_batch=2_048, num_replicas=num_devices)
    with strategy.scope():  # Model and optimizer must be created inside.
        model = Transformer.from_preset("tiny", vocab_size=tokenizer.vocab_size)
        compile_model(model, get_preset("tiny").recipe)
    steps = batches.steps_per_epoch()
    model.fit(batches.dataset(), epochs=2, steps_per_epoch=steps, shuffle=False)


if __name__ == "__main__":
    main()
