"""From text files to translations in plain Keras: vocabulary, batches, `compile` and `fit`.

These are the main steps of `keras-transformer train`, for those who want to change one of them:

    python examples/train_with_fit.py train.en train.de --epochs 10
"""

import argparse

import keras

from keras_transformer import Transformer, Translator, get_preset
from keras_transformer.data import (
    EncodedCorpus,
    ParallelTextCorpus,
    TokenBatches,
    train_sentencepiece,
)
from keras_transformer.decoding import BeamSearch
from keras_transformer.training import compile_model


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", help="text file, one sentence a line (.gz works)")
    parser.add_argument("target", help="its translation, line by line")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--output", default="runs/train_with_fit", help="model directory")
    arguments = parser.parse_args()
    keras.utils.set_random_seed(1)

    corpus = ParallelTextCorpus(arguments.source, arguments.target)
    tokenizer = train_sentencepiece(
        (sentence for pair in corpus for sentence in pair), vocab_size=4_000, allow_fewer=True
    )
    encoded = EncodedCorpus.from_corpus(corpus, tokenizer, max_length=128)
    batches = TokenBatches(encoded, tokens_per_batch=4_096, seed=1)

    recipe = get_preset("tiny").recipe
    model = Transformer.from_preset("tiny", vocab_size=tokenizer.vocab_size)
    compile_model(model, recipe)
    model.fit(
        batches.dataset(),
        epochs=arguments.epochs,
        steps_per_epoch=batches.steps_per_epoch(),
        shuffle=False,  # `TokenBatches` shuffles them.
    )

    translator = Translator(model, tokenizer, search=BeamSearch(beam_size=4, length_penalty=0.6))
    translator.save(arguments.output)
    sources = [source for source, _ in list(corpus)[:3]]
    for source, translation in zip(sources, translator.translate(sources), strict=True):
        print(f"{source}\n  {translation}")


if __name__ == "__main__":
    main()
