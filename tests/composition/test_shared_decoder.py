"""Two encoders and one decoder: a task each, or both sources at once."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers import Decoder, DecoderBlock, Encoder, EncoderBlock, TiedEmbedding
from tests.closeness import assert_close
from tests.composition.answers import answer
from tests.layers.harness import reloaded
from tests.training.uncompiled import RUN_EAGERLY

RANDOM = np.random.default_rng(1)
WORDS = np.array([[4, 9, 7, 0], [5, 6, 0, 0]], "int32")
FRAMES = RANDOM.normal(size=(2, 6, 3)).astype("float32")
TARGET = np.array([[2, 8, 9], [2, 5, 0]], "int32")
LABELS = np.array([[8, 9, 3], [5, 3, 0]], "int32")


def make_encoder(name):
    return Encoder([EncoderBlock(num_heads=2, intermediate_dim=32, dropout=0.0)], name=name)


class Parts:
    """Layers that the models below share."""

    def __init__(self):
        self.embedding = TiedEmbedding(20, 16)
        self.text_encoder = make_encoder("text_encoder")
        self.frames_to_states = keras.layers.Dense(16)
        self.speech_encoder = make_encoder("speech_encoder")
        self.decoder = Decoder([DecoderBlock(num_heads=2, intermediate_dim=32, dropout=0.0)])

    def encode_text(self, words):
        mask = ops.not_equal(words, 0)
        return self.text_encoder(self.embedding(words), padding_mask=mask), mask

    def encode_speech(self, frames):
        mask = ops.any(ops.not_equal(frames, 0.0), axis=-1)
        return self.speech_encoder(self.frames_to_states(frames), padding_mask=mask), mask

    def decode(self, target, encoder_outputs, encoder_padding_mask):
        states = self.decoder(
            self.embedding(target),
            encoder_outputs,
            padding_mask=ops.not_equal(target, 0),
            encoder_padding_mask=encoder_padding_mask,
        )
        return self.embedding(states, reverse=True)


def make_task_models(parts):
    words, frames = keras.Input((None,), dtype="int32"), keras.Input((None, 3))
    target = keras.Input((None,), dtype="int32")
    translate = keras.Model([words, target], parts.decode(target, *parts.encode_text(words)))
    transcribe = keras.Model([frames, target], parts.decode(target, *parts.encode_speech(frames)))
    for model in (translate, transcribe):
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
        model.compile(keras.optimizers.SGD(0.1), loss, run_eagerly=RUN_EAGERLY)
    return translate, transcribe


def test_training_one_task_moves_the_decoder_of_the_other_and_not_its_encoder():
    parts = Parts()
    translate, transcribe = make_task_models(parts)
    before_of = {
        name: getattr(parts, name).get_weights()
        for name in ("text_encoder", "speech_encoder", "decoder")
    }
    expected = answer(transcribe, [FRAMES, TARGET])
    translate.train_on_batch([WORDS, TARGET], LABELS)
    for name, before in before_of.items():
        after = getattr(parts, name).get_weights()
        moved = [np.any(new != old) for new, old in zip(after, before, strict=True)]
        assert not any(moved) if name == "speech_encoder" else all(moved), name
    assert np.abs(answer(transcribe, [FRAMES, TARGET]) - expected).max() > 1e-3


@pytest.mark.slow
def test_both_losses_fall_in_turns():
    translate, transcribe = make_task_models(Parts())
    losses = [
        (
            translate.train_on_batch([WORDS, TARGET], LABELS),
            transcribe.train_on_batch([FRAMES, TARGET], LABELS),
        )
        for _ in range(20)
    ]
    assert np.all(np.array(losses[-1]) < 0.7 * np.array(losses[0]))


def test_a_decoder_reads_two_sources_at_once(tmp_path):
    """The sources stand behind each other: states and masks are concatenated along the length."""
    parts = Parts()
    words, frames = keras.Input((None,), dtype="int32"), keras.Input((None, 3))
    target = keras.Input((None,), dtype="int32")
    states, masks = zip(parts.encode_text(words), parts.encode_speech(frames), strict=True)
    logits = parts.decode(target, ops.concatenate(states, axis=1), ops.concatenate(masks, axis=1))
    model = keras.Model([words, frames, target], logits)
    expected = answer(model, [WORDS, FRAMES, TARGET])
    longer = np.pad(WORDS, ((0, 0), (0, 3))), np.pad(FRAMES, ((0, 0), (0, 2), (0, 0)))
    assert_close(answer(model, [*longer, TARGET]), expected)
    other = np.where(WORDS == 9, 10, WORDS)
    assert np.abs(answer(model, [other, FRAMES, TARGET]) - expected)[0].max() > 1e-3
    assert np.abs(answer(model, [WORDS, 2 * FRAMES, TARGET]) - expected).max() > 1e-3
    again = reloaded(model, tmp_path)
    np.testing.assert_array_equal(answer(again, [WORDS, FRAMES, TARGET]), expected)
