"""Trains a small decoder-only language model and lets it continue sentences.

The text is the English side of the built-in corpus, sentences with numbers in words. The training
takes two minutes on two CPU cores. Before and after, the script prints the perplexity of held-out
sentences and what the model writes. It runs on every backend (KERAS_BACKEND).

    python examples/train_a_language_model.py
"""

import argparse
import math

import keras

from keras_transformer.data import train_sentencepiece
from keras_transformer.data.tokenizer import BOS_ID, EOS_ID, PAD_ID
from keras_transformer.decoding import BeamSearch, Sampling
from keras_transformer.layers import Decoder, DecoderBlock, RotaryPosition, TiedEmbedding
from keras_transformer.models import CausalLanguageModel
from keras_transformer.quickstart.corpus import number_corpus

LENGTH = 40


def make_model(vocab_size):
    """Returns a decoder of three pre-norm blocks with rotary positions, without cross-attention."""
    blocks = [
        DecoderBlock(num_heads=4, intermediate_dim=512, norm="pre", position=RotaryPosition())
        for _ in range(3)
    ]
    embedding = TiedEmbedding(vocab_size, d_model=128)
    return CausalLanguageModel(embedding, Decoder(blocks))


def make_examples(tokenizer, sentences):
    """Returns ids `[sentences, LENGTH]`, and the same ids one step later."""
    rows = [[BOS_ID, *tokenizer.encode(sentence), EOS_ID] for sentence in sentences]
    ids = keras.utils.pad_sequences(
        rows, LENGTH + 1, padding="post", truncating="post", value=PAD_ID
    )
    return ids[:, :-1], ids[:, 1:]


def show(model, tokenizer, held_out, title):
    """Prints the perplexity of held-out sentences, continuations of a prompt, and samples."""
    loss = model.evaluate(*held_out, batch_size=len(held_out[0]), verbose=0)
    print(f"\n{title}: perplexity {math.exp(loss):.2f} per token")
    prompts = ["I paid", "On the third of"]
    ids = [[BOS_ID, *tokenizer.encode(prompt)] for prompt in prompts]
    result = model.generate(ids, LENGTH, BeamSearch(beam_size=4))
    for prompt, tokens in zip(prompts, result.tokens[:, 0], strict=True):
        print(f"  {prompt} ... {tokenizer.decode(tokens.tolist())}")
    samples = model.generate([[BOS_ID]], LENGTH, Sampling(top_p=0.9, num_samples=3, seed=1))
    for tokens in samples.tokens[0]:
        print(f"  {tokenizer.decode(tokens.tolist())}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--output", help="file for the trained model, such as model.keras")
    arguments = parser.parse_args()
    keras.utils.set_random_seed(1)
    train, valid, _ = number_corpus(num_train=10_000, num_valid=500, num_test=0)
    tokenizer = train_sentencepiece((english for english, _ in train), vocab_size=500)
    held_out = make_examples(tokenizer, [english for english, _ in valid])
    model = make_model(tokenizer.vocab_size)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=PAD_ID)
    model.compile(keras.optimizers.Adam(2e-3), loss)
    model.summary()
    show(model, tokenizer, held_out, "before the training")
    model.fit(
        *make_examples(tokenizer, [english for english, _ in train]),
        validation_data=held_out,
        batch_size=64,
        epochs=arguments.epochs,
    )
    show(model, tokenizer, held_out, "after the training")
    if arguments.output:
        model.save(arguments.output)


if __name__ == "__main__":
    main()
