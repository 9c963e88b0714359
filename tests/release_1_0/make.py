"""Files as version 1.0 writes them. Run once, with that version: python -m tests.release_1_0.make

Writes `files.tar.xz` beside this file: model directories of a translator and a parser, SavedModels
in float32 and bfloat16, weights and `.keras` files of a `Transformer` and of a model that a user
composed of layers, the states of two trainings that were interrupted after step 5 and the weights
that they reach when they go on to step 8, and the answers of all.
"""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import tarfile
import tempfile

import keras
import numpy as np
from keras import ops

from keras_transformer.data import PairsCorpus, train_sentencepiece
from keras_transformer.decoding import BeamSearch
from keras_transformer.export import export_saved_model
from keras_transformer.inference import Translator
from keras_transformer.layers import (
    AdditiveAttention,
    Decoder,
    DecoderBlock,
    Encoder,
    EncoderBlock,
    FeedForward,
    MultiHeadAttention,
    RelativePosition,
    TiedEmbedding,
)
from keras_transformer.models import TrainingRecipe, Transformer, TransformerConfig
from keras_transformer.training import (
    LabelSmoothedCrossEntropy,
    TrainingSettings,
    make_optimizer,
    train,
)
from tests.release_0_1.make import (
    SMALL,
    TEXTS,
    WORDS,
    make_parser,
    parser_answers,
    translator_answers,
)

ARCHIVE = pathlib.Path(__file__).parent / "files.tar.xz"
CONFIG = {
    **SMALL,
    "use_bias": True,
    "norm": "pre",
    "position": "rotary",
    "activation": "gelu",
    "dropout": 0.0,
}
INPUTS = {
    "source": np.array([[5, 9, 7, 3], [6, 3, 0, 0]], "int32"),
    "target": np.array([[2, 8, 4], [2, 5, 0]], "int32"),
}
LABELS = np.array([[8, 4, 3], [5, 3, 0]], "int32")
PAIRS = [
    (" ".join(words), " ".join(words[::-1]))
    for n in range(40)
    for words in [[WORDS[(7 * n + k * k) % 20] for k in range(n % 6 + 1)]]
]


def randomize(model):
    """Gives every weight, also biases and scales, random values that occur nowhere else."""
    generator = np.random.default_rng(3)
    for weight in model.weights:
        scale = (sum(weight.shape) / 2) ** -0.5
        weight.assign(weight + generator.normal(0.0, scale, weight.shape))
    return model


def make_translator():
    """Returns a translator with biases, pre-norm, rotary positions and BPE."""
    tokenizer = train_sentencepiece([text for pair in PAIRS for text in pair], 290)
    model = randomize(Transformer(TransformerConfig(tokenizer.vocab_size, **CONFIG)))
    # Words rather than single bytes, which have the ids 4 to 259.
    table = model.target_embedding.get_weights()[0]
    table[4:260] *= 0.05
    model.target_embedding.set_weights([table])
    recipe = TrainingRecipe(warmup_steps=7, r_drop=1.0)
    return Translator(model, tokenizer, search=BeamSearch(2, 0.6), extra_length=5, recipe=recipe)


def make_transformer():
    """Returns a model with two vocabularies and learned positions."""
    sizes = {"vocab_size": 12, "target_vocab_size": 10, "max_length": 6}
    config = TransformerConfig(**sizes, **{**CONFIG, "position": "learned"})
    return randomize(Transformer(config))


def make_composed_model():
    """Returns a model that a user composed of layers."""
    source, target = (keras.Input((None,), dtype="int32", name=name) for name in INPUTS)
    mask = ops.not_equal(source, 0)
    embedding = TiedEmbedding(12, 8)
    encoder = Encoder(
        [
            EncoderBlock(2, 16, dropout=0.0, use_bias=True, position=RelativePosition(3)),
            EncoderBlock(2, 16, dropout=0.0, key_dim=3, value_dim=5, norm="pre", activation="gelu"),
        ],
        dropout=0.0,
        position="sinusoidal",
    )
    states = encoder(embedding(source), padding_mask=mask)
    states = EncoderBlock(4, 16, dropout=0.0)(states, padding_mask=mask)
    outputs = embedding(target)
    for block in (
        DecoderBlock(2, 16, dropout=0.0, use_bias=True),
        DecoderBlock(4, 16, dropout=0.0, norm="pre"),
    ):
        outputs = block(outputs, states, encoder_padding_mask=mask)
    blocks = [DecoderBlock(2, 16, dropout=0.0, position=RelativePosition(2))]
    outputs = Decoder(blocks, position="sinusoidal", dropout=0.0)(
        outputs, states, encoder_padding_mask=mask
    )
    outputs += MultiHeadAttention(2, 4, use_bias=True, position=RelativePosition(2))(
        outputs, outputs, outputs, use_causal_mask=True
    )
    outputs += MultiHeadAttention(2, 3, 5, attention=AdditiveAttention())(
        outputs, states, states, key_mask=mask
    )
    outputs += FeedForward(16)(outputs)
    outputs += FeedForward(16, activation="tanh", use_bias=False)(outputs)
    outputs = embedding(outputs, reverse=True)
    return randomize(keras.Model([source, target], outputs))


def train_a_step(model):
    """Returns the model after a step of Adam."""
    is_token = (LABELS > 0).astype("float32")
    inputs = INPUTS if isinstance(model, Transformer) else list(INPUTS.values())
    model.train_on_batch(inputs, LABELS, is_token / is_token.sum())
    return model


def model_answer(model):
    """Returns the logits of a model."""
    inputs = INPUTS if isinstance(model, Transformer) else list(INPUTS.values())
    return ops.convert_to_numpy(model(inputs, training=False))


def served_translations(path):
    """Returns the translations of `TEXTS` by a SavedModel."""
    import tensorflow as tf
    import tensorflow_text  # noqa: F401

    signature = tf.saved_model.load(str(path)).signatures["serving_default"]
    return [text.decode() for text in signature(tf.constant(TEXTS))["translation"].numpy()]


TRAININGS = {
    "plain": {"model": SMALL},
    # The weights are chosen by validation loss.
    "variant": {
        "model": {
            **{**SMALL, "use_bias": True, "norm": "pre", "position": "relative"},
            **dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), 0.2),
        },
        "recipe": {"ema_momentum": 0.8, "r_drop": 1.0, "clip_norm": 1.0},
        "shared_vocabulary": False,
        "micro_batches": 2,
        "bleu_every": 0,
    },
}


def train_translator(directory, kind, report=lambda line: None, stop_after=None):
    """Trains to step 8, or is interrupted one step after `stop_after`."""
    changes = dict(TRAININGS[kind])
    recipe = {"tokens_per_batch": 64, "warmup_steps": 4, "average_checkpoints": 3}
    recipe["peak_learning_rate"] = 0.004  # that of the preset in 1.0
    if hasattr(TrainingRecipe, "optimizer"):  # of newer versions
        recipe["optimizer"] = "adam"
    settings = TrainingSettings.from_dict(
        {
            "preset": "tiny",
            "recipe": {**recipe, **changes.pop("recipe", {})},
            "tokenizer": "subword",
            "vocab_size": None,
            "max_steps": 8,
            "evaluate_every": 3,
            "checkpoint_every": 2,
            "deterministic": True,
            **changes,
        }
    )

    def stop(batch, logs):
        if int(callback.model.optimizer.iterations) == stop_after:
            os.kill(os.getpid(), signal.SIGINT)

    callback = keras.callbacks.LambdaCallback(on_train_batch_end=stop)
    corpus = PairsCorpus(PAIRS)
    return train(directory, corpus, corpus, settings, callbacks=[callback], report=report)


def main():
    from keras_transformer.layers.kernels import stored_kernels

    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        keras.utils.set_random_seed(3)
        translator, parser = make_translator(), make_parser()
        translator.save(root / "translator")
        randomize(parser.model)
        parser.save(root / "parser")
        answers = {"translator": translator_answers(translator), "parser": parser_answers(parser)}
        # The weights as a processor with AMX stores them; without it, they are as in float32.
        stored_kernels.has_amx = lambda: True
        for dtype in ("float32", "bfloat16"):
            path = export_saved_model(translator, root / f"saved_model_{dtype}", dtype=dtype)
            answers[path.name] = served_translations(path)
        arrays = {}
        for name, make in (("transformer", make_transformer), ("composed", make_composed_model)):
            model = make()
            recipe = TrainingRecipe(warmup_steps=10)
            loss = LabelSmoothedCrossEntropy(recipe.label_smoothing)
            model.compile(make_optimizer(recipe, 8), loss)
            train_a_step(model)
            model.save(root / f"{name}.keras")
            model.save_weights(root / f"{name}.weights.h5")
            arrays[name] = model_answer(model)
            arrays[f"{name}_after_a_step"] = model_answer(train_a_step(model))
        for kind in TRAININGS:
            started, lines = root / f"training_{kind}", []
            with contextlib.suppress(KeyboardInterrupt):
                train_translator(started, kind, stop_after=4)
            shutil.copytree(started, root / "goes_on")
            result = train_translator(root / "goes_on", kind, lines.append)
            shutil.rmtree(root / "goes_on")
            answers[kind] = [line for line in lines if "validation loss" in line]
            for weight in result.translator.model.weights:
                arrays[f"{kind}/{weight.path}"] = ops.convert_to_numpy(weight)
        (root / "answers.json").write_text(json.dumps(answers, indent=1))
        np.savez_compressed(root / "answers.npz", **arrays)
        with tarfile.open(ARCHIVE, "w:xz") as archive:
            for path in sorted(root.iterdir()):
                archive.add(path, path.name)


if __name__ == "__main__":
    main()
