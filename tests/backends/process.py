"""A program of one backend, which the tests of this folder run.

    python process.py write FOLDER                  # models, with the logits that they have here
    python process.py read FOLDER BACKEND [...]     # loads those of all backends and uses them

It leaves `BACKEND/written.npz`, `BACKEND/read.npz` and `BACKEND/translated.json`.
"""

import json
import pathlib
import sys

import keras
import numpy as np

import keras_transformer
from keras_transformer.training import LossModel, compile_model

VOCABULARY = 20


def ids(seed, rows, length):
    """Rows of ids of different lengths, padded with 0."""
    generator = np.random.default_rng(seed)
    array = generator.integers(4, VOCABULARY, (rows, length)).astype("int32")
    return array * (np.arange(length) < generator.integers(1, length + 1, (rows, 1)))


INPUTS = {
    "transformer": {"source": ids(1, 6, 7), "target": ids(2, 6, 5)},
    "functional": ids(3, 6, 8),
}


def make_transformer():
    sizes = {"d_model": 16, "intermediate_dim": 24, "num_heads": 2, "dropout": 0.0}
    layers = {"num_encoder_layers": 1, "num_decoder_layers": 2}
    config = keras_transformer.TransformerConfig(vocab_size=VOCABULARY, **layers, **sizes)
    return keras_transformer.Transformer(config)


def make_functional():
    """Every layer of ours among Keras's own; the masks travel with the tensors."""
    layers = keras_transformer.layers
    inputs = keras.Input((None,), dtype="int32", name="ids")
    embedding = layers.TiedEmbedding(VOCABULARY, 16, mask_zero=True)
    encoder_block = layers.EncoderBlock(2, 24, norm="pre", use_bias=True, activation="gelu")
    position = layers.LearnedPositionEmbedding(12)
    states = layers.Encoder([encoder_block], position=position)(embedding(inputs))
    decoder_block = layers.DecoderBlock(2, 24, key_dim=3, value_dim=5)
    states = layers.Decoder([decoder_block])(states)
    attended = layers.MultiHeadAttention(2, 8)(states, states, use_causal_mask=True)
    states = keras.layers.Add()([states, layers.Dropout(0.1)(attended)])
    states = layers.SinusoidalPositionEncoding()(layers.FeedForward(24)(states))
    heads = keras.layers.Reshape((-1, 2, 8))(states)
    heads = layers.ScaledDotProductAttention()(heads, heads, heads)
    states = keras.layers.Reshape((-1, 16))(heads)
    return keras.Model(inputs, embedding(states, reverse=True))


def logits(model, name):
    return keras.ops.convert_to_numpy(model(INPUTS[name]))


def write(folder):
    """Writes both models with the logits that they have here."""
    keras.utils.set_random_seed(7)
    generator = np.random.default_rng(7)
    written = {}
    for name, make in (("transformer", make_transformer), ("functional", make_functional)):
        model = make()
        for weight in model.trainable_weights:
            weight.assign(weight + generator.normal(0, 0.1, weight.shape))
        model.save(folder / f"{name}.keras")
        written[name] = logits(model, name)
    recipe = keras_transformer.TrainingRecipe()
    for name, model in (("whole", make_transformer()), ("loss", LossModel(make_transformer()))):
        compile_model(model, recipe).save(folder / f"compiled_{name}.keras")
    np.savez(folder / "written.npz", **written)


def read(folder, writers):
    """Returns the logits of every model of every backend."""
    found = {}
    for writer in writers:
        for name in INPUTS:
            model = keras.saving.load_model(folder / writer / f"{name}.keras")
            found[f"{writer}.{name}"] = logits(model, name)
        for name in ("whole", "loss"):
            model = keras.saving.load_model(folder / writer / f"compiled_{name}.keras")
            assert model.jit_compile == (keras.backend.backend() == "jax"), (writer, name)
        model = keras.saving.load_model(folder / writer / "transformer.keras")
        assert type(model) is keras_transformer.Transformer
        assert model.config == make_transformer().config
        state = model.start_decoding(INPUTS["transformer"]["source"], 1, 3)
        step = model.decode_step(np.full(6, 2, "int32"), None, state)[0]
        found[f"{writer}.first_step"] = keras.ops.convert_to_numpy(step)
    return found


def fit(path, steps=10):
    """Trains the model of a file with plain SGD; returns the loss of each step and the weights."""
    model = keras.saving.load_model(path)
    loss = keras_transformer.training.LabelSmoothedCrossEntropy(0.1)
    # At 0.1 the loss rises before the end, and differences of rounding grow with it.
    model.compile(keras.optimizers.SGD(0.03), loss)
    target = ids(5, 8, 6)
    labels = np.concatenate([target[:, 1:], np.zeros((8, 1), "int32")], axis=1)
    weights = (target != 0).astype("float32")
    history = model.fit(
        {"source": ids(4, 8, 6), "target": target},
        labels,
        sample_weight=weights / weights.sum(),
        batch_size=8,
        epochs=steps,
        shuffle=False,
        verbose=0,
    )
    return history.history["loss"], model.get_weights()


def translate(directory):
    """Loads a translator and returns what its searches find, and what it scores."""
    from keras_transformer.decoding import BeamSearch, GreedySearch, Sampling
    from tests.tiny_translator import sentence

    translator = keras_transformer.Translator.load(directory)
    texts = [sentence(number_of_words, number_of_words) for number_of_words in (5, 2, 9, 3, 7)]
    searches = {
        "greedy": GreedySearch(),
        "beam": BeamSearch(beam_size=4, n_best=3),
        "samples": Sampling(num_samples=3, top_k=50, top_p=0.95, seed=4),
        "samples_again": Sampling(num_samples=3, top_k=50, top_p=0.95, seed=4),
    }
    found = {
        name: [
            [{"tokens": one.tokens, "score": one.score} for one in answers]
            for answers in translator.hypotheses(texts, search)
        ]
        for name, search in searches.items()
    }
    scores = translator.score(texts, texts[::-1])
    return {**found, "scores": [one.log_probability for one in scores]}


def main():
    command, folder, *writers = sys.argv[1:]
    folder = pathlib.Path(folder)
    own = folder / keras.backend.backend()
    own.mkdir(exist_ok=True)
    if command == "write":
        write(own)
        return
    arrays = read(folder, writers)
    arrays["losses"], weights = fit(folder / writers[0] / "transformer.keras")
    arrays |= {f"trained.{i}": weight for i, weight in enumerate(weights)}
    np.savez(own / "read.npz", **arrays)
    (own / "translated.json").write_text(json.dumps(translate(folder / "translator")))


if __name__ == "__main__":
    main()
