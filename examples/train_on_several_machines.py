"""Trains on several machines with Keras on JAX, with one process on each machine.

Every process runs the same command with its own number. To try it on one machine, in two terminals:

    python examples/train_on_several_machines.py --coordinator localhost:12345 --processes 2 --id 0
    python examples/train_on_several_machines.py --coordinator localhost:12345 --processes 2 --id 1

All processes make the same batches, from the same seed. Each passes its rows of a batch to Keras,
which sums the gradients. The weights equal those of one process that trains on the whole batches.
"""

import argparse
import os
import tempfile

os.environ["KERAS_BACKEND"] = "jax"

import jax
import keras

from keras_transformer import Transformer, get_preset
from keras_transformer.data import EncodedCorpus, PairsCorpus, TokenBatches, train_sentencepiece
from keras_transformer.quickstart import number_corpus
from keras_transformer.training import compile_model


def rows_of(batches, process, num_processes):
    """Yields the rows of each batch that a process trains on, epoch after epoch."""
    epoch = 0
    while True:
        for inputs, labels, weights in batches.batches(epoch):
            part = slice(
                process * len(labels) // num_processes, (process + 1) * len(labels) // num_processes
            )
            yield {name: ids[part] for name, ids in inputs.items()}, labels[part], weights[part]
        epoch += 1


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--coordinator", help="host:port of process 0; none for a single process")
    parser.add_argument("--processes", type=int, default=1, help="number of processes")
    parser.add_argument("--id", type=int, default=0, help="number of this one, from 0")
    parser.add_argument("--steps", type=int, default=60, help="training steps")
    parser.add_argument("--weights", help="file for the weights, NAME.weights.h5, of process 0")
    arguments = parser.parse_args()
    if arguments.coordinator:
        jax.distributed.initialize(arguments.coordinator, arguments.processes, arguments.id)
        # Each process passes only its own rows.
        distribution = keras.distribution.DataParallel(auto_shard_dataset=False)
        keras.distribution.set_distribution(distribution)
    keras.utils.set_random_seed(1)

    pairs, _, _ = number_corpus(num_train=2_000, num_valid=10, num_test=10)
    tokenizer = train_sentencepiece((text for pair in pairs for text in pair), vocab_size=500)
    encoded = EncodedCorpus.from_corpus(PairsCorpus(pairs), tokenizer)
    # Few shapes, because each is compiled. Replicas make the rows a multiple of the processes.
    batches = TokenBatches(
        encoded, tokens_per_batch=2_048, num_replicas=arguments.processes, max_shapes=2
    )
    model = Transformer.from_preset("tiny", vocab_size=tokenizer.vocab_size)
    compile_model(model, get_preset("tiny").recipe)
    model.fit(
        rows_of(batches, arguments.id, arguments.processes),
        steps_per_epoch=arguments.steps,
        shuffle=False,
        verbose=2 if arguments.id == 0 else 0,
    )
    if arguments.weights:
        # All processes save: Keras creates variables then, which every process must create.
        with tempfile.TemporaryDirectory() as folder:
            elsewhere = f"{folder}/copy.weights.h5"
            model.save_weights(arguments.weights if arguments.id == 0 else elsewhere)


if __name__ == "__main__":
    main()
