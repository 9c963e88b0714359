"""`TranslatorFunctions`: the signatures of a translator's SavedModel, from raw strings to tensors.

Every output has one row for each input string, so that a server can batch requests and split the
answers. A request is processed in chunks of bounded size, which limits its memory. The answer to a
row does not depend on the other rows, unless it is sampled or uses a shortlist.
"""

import tensorflow as tf
from keras import ops

from keras_transformer.data.tokenizer import BOS_ID, PAD_ID
from keras_transformer.export import served_module as served
from keras_transformer.layers.tensors import Tensor

# Maximum number of elements in the largest tensor of a chunk of rows.
_MAX_NUMBERS = 2**26


class TranslatorFunctions(served.ServedFunctions):
    """The signatures of a translator; the arguments are those of `ServedFunctions`."""

    inputs = {
        **dict.fromkeys(("serving_default", "n_best", "limits"), ("text",)),
        **dict.fromkeys(("score", "attention"), ("text", "translation")),
    }
    outputs = ("translation", "translations")

    def __init__(self, module, pipeline, model, search, num_streams):
        super().__init__(module, pipeline, model, search, num_streams)
        longest = pipeline.max_source_length + pipeline.extra_length
        # Maximum number of tokens, EOS included, of a given or generated translation.
        self._max_target_length = min(longest, model.config.max_length or longest)
        profile = pipeline.sentence_profile
        self._settings |= {
            "max_target_length": self._max_target_length,
            "sentence_profile": None if profile is None else profile.to_dict(),
        }

    def score(self, text: Tensor, translation: Tensor) -> dict[str, Tensor]:
        sources, targets, truncated = self._encode_pairs(text, translation)
        length = tf.cast(targets.bounding_shape()[1], tf.int32)

        def score_rows(start, end):
            labels = served.padded(targets[start:end], length)
            source, target = served.padded(sources[start:end]), _decoder_inputs(labels)
            logits = self._model({"source": source, "target": target}, training=False)
            chosen = tf.gather(logits, labels, batch_dims=2)
            found = tf.cast(chosen - ops.logsumexp(logits, axis=-1), tf.float32)
            return {"values": tf.where(labels == PAD_ID, 0.0, found)}

        rows = served.rows_per_chunk(
            (served.longest_row(sources, targets), served.MAX_TOKENS),
            (length * self._model.config.output_vocab_size, _MAX_NUMBERS),
        )
        empty = {"values": tf.zeros([0, length])}
        values = served.in_chunks(score_rows, tf.shape(text)[0], rows, empty)["values"]
        return {
            "log_probability": tf.reduce_sum(values, axis=1),
            "num_tokens": tf.cast(targets.row_lengths(), tf.int32),
            "tokens": self._pieces(self._pipeline.target_tokenizer, targets),
            "token_log_probabilities": values,
            "truncated": truncated,
        }

    def attention(self, text: Tensor, translation: Tensor) -> dict[str, Tensor]:
        sources, targets, truncated = self._encode_pairs(text, translation)
        lengths = [tf.cast(ids.bounding_shape()[1], tf.int32) for ids in (targets, sources)]

        def attend_rows(start, end):
            labels = served.padded(targets[start:end], lengths[0])
            source = served.padded(sources[start:end], lengths[1])
            blocks = self._model.attention_scores(source, _decoder_inputs(labels))["cross"]
            # The last but one block aligns best (Garg et al., 2019, section 4.1).
            scores = tf.cast(blocks[max(len(blocks) - 2, 0)], tf.float32)
            scores = tf.reduce_mean(scores, axis=1)  # [batch, target, source]
            is_real = (labels != PAD_ID)[:, :, None] & (source != PAD_ID)[:, None, :]
            return {"attention": tf.where(is_real, scores, 0.0)}

        longest = served.longest_row(sources, targets)
        rows = served.rows_per_chunk(
            (longest, served.MAX_TOKENS), (longest**2 * self._model.config.num_heads, _MAX_NUMBERS)
        )
        empty = {"attention": tf.zeros([0, *lengths])}
        return {
            **served.in_chunks(attend_rows, tf.shape(text)[0], rows, empty),
            "source_tokens": self._pieces(self._pipeline.source_tokenizer, sources),
            "target_tokens": self._pieces(self._pipeline.target_tokenizer, targets),
            "truncated": truncated,
        }

    def limits(self, text: Tensor) -> dict[str, Tensor]:
        limits = self._limits(text)
        num_subwords = tf.minimum(limits["num_tokens"], self._pipeline.max_source_length) - 1
        return {**limits, "max_translation_tokens": self._pipeline.max_lengths(num_subwords)}

    def _answer(self, text, search):
        sources, truncated = self._encode_source(text)
        num_subwords = tf.cast(sources.row_lengths(), tf.int32) - 1

        def write(tokens, scores):
            tokens = tf.where((num_subwords == 0)[:, None, None], PAD_ID, tokens)
            flat = tf.reshape(tokens, [-1, tf.shape(tokens)[-1]])  # [batch * n, length]
            return tf.reshape(self._module.target_tokenizer.detokenize(flat), tf.shape(scores))

        return self._search(sources, num_subwords, search, write), truncated

    def _encode_pairs(self, text, translation):
        same = tf.debugging.assert_equal(
            tf.shape(text), tf.shape(translation), "There must be one translation for each text."
        )
        with tf.control_dependencies([same]):
            text = tf.identity(text)
        sources, is_cut = self._encode_source(text)
        targets, is_target_cut = served.encode(
            self._module.target_tokenizer, translation, self._max_target_length
        )
        return sources, targets, is_cut | is_target_cut

    def _pieces(self, tokenizer, ids):
        """Returns the piece of each id: strings `[batch, length]`, padded with `""`."""
        vocabulary = tf.constant(tokenizer.pieces(range(tokenizer.vocab_size)))
        pieces = ids.with_flat_values(tf.gather(vocabulary, ids.flat_values))
        return pieces.to_tensor(default_value="")


def _decoder_inputs(labels):
    """Returns the labels shifted right, with BOS first; the padding stays where it is."""
    shifted = tf.pad(labels[:, :-1], [[0, 0], [1, 0]], constant_values=BOS_ID)
    return tf.where(labels == PAD_ID, PAD_ID, shifted)
