"""The functions of a translator's SavedModel, each from raw strings to tensors.

Needs TensorFlow to be imported. Every output has one row for each string that came in, so that a
server may join requests to a batch and take the answers apart again. The rows of a request are
worked on in chunks of bounded padded size: its memory does not grow with the number of rows. No
row's answer depends on another row.
"""

import tensorflow as tf
from keras import ops

from keras_transformer.data.special_tokens import BOS_ID, PAD_ID
from keras_transformer.export.graph_rows import (
    MAX_TOKENS,
    chunk_seed,
    encode,
    in_chunks,
    longest_row,
    padded,
    rows_per_chunk,
)
from keras_transformer.export.served_module import ServedModule, settings, several_answers
from keras_transformer.inference.batch_inference import one_answer, search_ids

_TEXT = tf.TensorSpec([None], tf.string, name="text")
_TRANSLATION = tf.TensorSpec([None], tf.string, name="translation")
_INPUTS = {
    "serving_default": [_TEXT],
    "n_best": [_TEXT],
    "score": [_TEXT, _TRANSLATION],
    "attention": [_TEXT, _TRANSLATION],
    "limits": [_TEXT],
}
# Bounds a chunk of rows: numbers in its largest tensor.
_MAX_NUMBERS = 2**26


def translator_module(translator, model, search, num_streams=1):
    """Returns the `ServedModule` of a translator.

    Args:
        translator: a `Translator`.
        model: the translator's model, or a copy of another dtype.
        search: a search of `keras_transformer.decoding`.
        num_streams: parts of a request that are searched at the same time.
    """
    return ServedModule(
        translator,
        model,
        lambda module: _Functions(module, translator, model, search, num_streams),
        _INPUTS,
        num_streams,
    )


def _max_target_length(translator):
    """Returns the most tokens of any translation, given or found, EOS counted."""
    longest = translator.max_source_length + translator.extra_length
    return min(longest, translator.model.config.max_length or longest)


class _Functions:
    """The functions of the signatures; `module` holds what a SavedModel has to track."""

    def __init__(self, module, translator, model, search, num_streams):
        self._module = module
        self._num_streams = num_streams
        self._translator = translator
        self._model = model
        self._best, self._several = one_answer(search), several_answers(search)
        self._max_target_length = _max_target_length(translator)
        profile = translator.sentence_profile
        more = {
            "max_target_length": self._max_target_length,
            "num_streams": num_streams,
            "sentence_profile": None if profile is None else profile.to_dict(),
        }
        self._settings = settings(translator, model, search, **more)

    def serving_default(self, text):
        found = self._search(text, self._best)
        return {
            "translation": found["texts"][:, 0],
            "score": found["scores"][:, 0],
            "truncated": found["truncated"],
        }

    def n_best(self, text):
        found = self._search(text, self._several)
        return {
            "translations": found["texts"],
            "scores": found["scores"],
            "truncated": found["truncated"],
        }

    def score(self, text, translation):
        sources, targets, truncated = self._encode_pairs(text, translation)
        length = tf.cast(targets.bounding_shape()[1], tf.int32)

        def score_rows(start, end):
            labels = padded(targets[start:end], length)
            inputs = {"source": padded(sources[start:end]), "target": _decoder_inputs(labels)}
            logits = self._model(inputs, training=False)
            chosen = tf.gather(logits, labels, batch_dims=2)
            found = tf.cast(chosen - ops.logsumexp(logits, axis=-1), tf.float32)
            return {"values": tf.where(labels == PAD_ID, 0.0, found)}

        rows = rows_per_chunk(
            (longest_row(sources, targets), MAX_TOKENS),
            (length * self._model.config.output_vocab_size, _MAX_NUMBERS),
        )
        empty = {"values": tf.zeros([0, length])}
        values = in_chunks(score_rows, tf.shape(text)[0], rows, empty)["values"]
        return {
            "log_probability": tf.reduce_sum(values, axis=1),
            "num_tokens": tf.cast(targets.row_lengths(), tf.int32),
            "tokens": self._pieces(self._translator.target_tokenizer, targets),
            "token_log_probabilities": values,
            "truncated": truncated,
        }

    def attention(self, text, translation):
        sources, targets, truncated = self._encode_pairs(text, translation)
        lengths = [tf.cast(ids.bounding_shape()[1], tf.int32) for ids in (targets, sources)]

        def attend_rows(start, end):
            labels = padded(targets[start:end], lengths[0])
            source = padded(sources[start:end], lengths[1])
            blocks = self._model.attention_scores(source, _decoder_inputs(labels))["cross"]
            # The last but one block aligns best (Garg et al., 2019, section 4.1).
            scores = tf.cast(blocks[max(len(blocks) - 2, 0)], tf.float32)
            scores = tf.reduce_mean(scores, axis=1)  # [batch, target, source]
            is_real = (labels != PAD_ID)[:, :, None] & (source != PAD_ID)[:, None, :]
            return {"attention": tf.where(is_real, scores, 0.0)}

        longest = longest_row(sources, targets)
        rows = rows_per_chunk(
            (longest, MAX_TOKENS),
            (longest * longest * self._model.config.num_heads, _MAX_NUMBERS),
        )
        empty = {"attention": tf.zeros([0, *lengths])}
        return {
            **in_chunks(attend_rows, tf.shape(text)[0], rows, empty),
            "source_tokens": self._pieces(self._translator.source_tokenizer, sources),
            "target_tokens": self._pieces(self._translator.target_tokenizer, targets),
            "truncated": truncated,
        }

    def limits(self, text):
        lengths = self._module.source_tokenizer.tokenize(text).row_lengths()
        num_tokens = tf.cast(lengths, tf.int32) + 1  # and EOS
        longest = self._translator.max_source_length
        read = tf.minimum(num_tokens, longest)
        return {
            "num_tokens": num_tokens,
            "max_source_tokens": tf.fill(tf.shape(text), longest),
            "max_translation_tokens": self._translator.max_lengths(read - 1),
            "truncated": num_tokens > longest,
            "settings": tf.fill(tf.shape(text), self._settings),
        }

    def _search(self, text, search):
        """Translates: `texts` and `scores` `[batch, n]`, and `truncated` `[batch]`."""
        sources, truncated = encode(
            self._module.source_tokenizer, text, self._translator.max_source_length
        )
        num_answers = getattr(search, "n_best", search.width)

        def search_rows(start, end):
            source = padded(sources[start:end])
            num_subwords = tf.cast(sources[start:end].row_lengths(), tf.int32) - 1
            max_lengths = self._translator.max_lengths(num_subwords)
            seed = chunk_seed(search, start)
            result = search_ids(self._model, source, max_lengths, search, **seed)
            is_empty = (num_subwords == 0)[:, None]
            tokens = tf.where(is_empty[:, :, None], PAD_ID, result.tokens)
            texts = self._module.target_tokenizer.detokenize(
                tf.reshape(tokens, [-1, tf.shape(tokens)[-1]])  # [batch * n, length]
            )
            return {
                "texts": tf.reshape(texts, [-1, num_answers]),
                "scores": tf.where(is_empty, 0.0, tf.cast(result.scores, tf.float32)),
            }

        positions = search.width * (2 * longest_row(sources) + self._translator.extra_length)
        empty = {
            "texts": tf.zeros([0, num_answers], tf.string),
            "scores": tf.zeros([0, num_answers]),
        }
        rows = rows_per_chunk((positions, MAX_TOKENS))
        return {
            **in_chunks(search_rows, tf.shape(text)[0], rows, empty, self._num_streams),
            "truncated": truncated,
        }

    def _encode_pairs(self, text, translation):
        same = tf.debugging.assert_equal(
            tf.shape(text), tf.shape(translation), "There must be one translation for each text."
        )
        with tf.control_dependencies([same]):
            text = tf.identity(text)
        sources, is_cut = encode(
            self._module.source_tokenizer, text, self._translator.max_source_length
        )
        targets, is_target_cut = encode(
            self._module.target_tokenizer, translation, self._max_target_length
        )
        return sources, targets, is_cut | is_target_cut

    def _pieces(self, tokenizer, ids):
        """The spelling of each id: strings `[batch, length]`, `""` behind the last."""
        vocabulary = tf.constant(tokenizer.pieces(range(tokenizer.vocab_size)))
        pieces = ids.with_flat_values(tf.gather(vocabulary, ids.flat_values))
        return pieces.to_tensor(default_value="")


def _decoder_inputs(labels):
    """BOS and the labels but the last of each row, padded as they are."""
    shifted = tf.pad(labels[:, :-1], [[0, 0], [1, 0]], constant_values=BOS_ID)
    return tf.where(labels == PAD_ID, PAD_ID, shifted)
