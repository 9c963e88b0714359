"""The functions of a SavedModel, each from raw strings to tensors.

The only module here that needs TensorFlow to be imported. Every output has one row for each string
that came in, so that a server may join requests to a batch and take the answers apart again. The
rows of a request are worked on in chunks of bounded padded size: its memory does not grow with the
number of rows. No row's answer depends on another row.
"""

import dataclasses
import json

import tensorflow as tf
from keras import ops

import keras_transformer
from keras_transformer.batch_inference import one_answer, search_ids
from keras_transformer.data.special_tokens import BOS_ID, EOS_ID, PAD_ID
from keras_transformer.decoding import search_to_dict

_TEXT = tf.TensorSpec([None], tf.string, name="text")
_TRANSLATION = tf.TensorSpec([None], tf.string, name="translation")
_INPUTS = {
    "serving_default": [_TEXT],
    "n_best": [_TEXT],
    "score": [_TEXT, _TRANSLATION],
    "attention": [_TEXT, _TRANSLATION],
    "limits": [_TEXT],
}
# Bounds of a chunk: padded positions of source and target, and numbers in its largest tensor.
_MAX_TOKENS = 32_768
_MAX_NUMBERS = 2**26


class TranslatorModule(tf.Module):
    """What is saved: the weights once, the tokenizers, and a function for every signature.

    Args:
        translator: a `Translator`.
        model: the translator's model, or a copy of another dtype.
        search: a search of `keras_transformer.decoding`.
    """

    def __init__(self, translator, model, search):
        super().__init__(name="translator")
        # The model itself stays in the closures: tracked, it would bring its layers' bookkeeping
        # and, once compiled, the optimizer, and each weight a second time.
        self.model_variables = [weight.value for weight in model.weights]
        self.source_tokenizer = self.target_tokenizer = translator.source_tokenizer.in_graph()
        if translator.target_tokenizer is not translator.source_tokenizer:
            self.target_tokenizer = translator.target_tokenizer.in_graph()
        # A `tf.function` holds the object of a method by a weak reference only.
        self._functions = _Functions(self, translator, model, search)
        for name, inputs in _INPUTS.items():
            method = getattr(self._functions, name)
            setattr(self, name, tf.function(method, input_signature=inputs, autograph=False))

    def functions(self):
        """Returns the functions by the name of their signature."""
        return {name: getattr(self, name) for name in _INPUTS}


def _several_answers(search):
    """Returns the search of the `n_best` signature: one answer per beam if `n_best` is 1."""
    if getattr(search, "n_best", None) == 1:
        return dataclasses.replace(search, n_best=search.beam_size)
    return search


def _settings(translator, model, search):
    """Returns what the answers depend on besides the weights, as JSON."""
    return json.dumps(
        {
            "library_version": keras_transformer.__version__,
            "precision": model.policy.name,
            "search": search_to_dict(search),
            "max_source_length": translator.max_source_length,
            "extra_length": translator.extra_length,
            "max_target_length": _max_target_length(translator),
        }
    )


def _max_target_length(translator):
    """Returns the most tokens of any translation, given or found, EOS counted."""
    longest = translator.max_source_length + translator.extra_length
    return min(longest, translator.model.config.max_length or longest)


class _Functions:
    """The functions of the signatures; `module` holds what a SavedModel has to track."""

    def __init__(self, module, translator, model, search):
        self._module = module
        self._translator = translator
        self._model = model
        self._best, self._several = one_answer(search), _several_answers(search)
        self._settings = _settings(translator, model, search)
        self._max_target_length = _max_target_length(translator)

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
            labels = _padded(targets[start:end], length)
            inputs = {"source": _padded(sources[start:end]), "target": _decoder_inputs(labels)}
            logits = self._model(inputs, training=False)
            chosen = tf.gather(logits, labels, batch_dims=2)
            found = tf.cast(chosen - ops.logsumexp(logits, axis=-1), tf.float32)
            return {"values": tf.where(labels == PAD_ID, 0.0, found)}

        rows = _rows_per_chunk(
            (_longest(sources, targets), _MAX_TOKENS),
            (length * self._model.config.output_vocab_size, _MAX_NUMBERS),
        )
        empty = {"values": tf.zeros([0, length])}
        values = _in_chunks(score_rows, tf.shape(text)[0], rows, empty)["values"]
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
            labels = _padded(targets[start:end], lengths[0])
            source = _padded(sources[start:end], lengths[1])
            blocks = self._model.attention_scores(source, _decoder_inputs(labels))["cross"]
            # The last but one block aligns best (Garg et al., 2019, section 4.1).
            scores = tf.cast(blocks[max(len(blocks) - 2, 0)], tf.float32)
            scores = tf.reduce_mean(scores, axis=1)  # [batch, target, source]
            is_real = (labels != PAD_ID)[:, :, None] & (source != PAD_ID)[:, None, :]
            return {"attention": tf.where(is_real, scores, 0.0)}

        longest = _longest(sources, targets)
        rows = _rows_per_chunk(
            (longest, _MAX_TOKENS),
            (longest * longest * self._model.config.num_heads, _MAX_NUMBERS),
        )
        empty = {"attention": tf.zeros([0, *lengths])}
        return {
            **_in_chunks(attend_rows, tf.shape(text)[0], rows, empty),
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
        sources, truncated = _encode(
            self._module.source_tokenizer, text, self._translator.max_source_length
        )
        num_answers = getattr(search, "n_best", search.width)

        def search_rows(start, end):
            source = _padded(sources[start:end])
            num_subwords = tf.cast(sources[start:end].row_lengths(), tf.int32) - 1
            max_lengths = self._translator.max_lengths(num_subwords)
            result = search_ids(self._model, source, max_lengths, search)
            is_empty = (num_subwords == 0)[:, None]
            tokens = tf.where(is_empty[:, :, None], PAD_ID, result.tokens)
            texts = self._module.target_tokenizer.detokenize(
                tf.reshape(tokens, [-1, tf.shape(tokens)[-1]])  # [batch * n, length]
            )
            return {
                "texts": tf.reshape(texts, [-1, num_answers]),
                "scores": tf.where(is_empty, 0.0, tf.cast(result.scores, tf.float32)),
            }

        positions = search.width * (2 * _longest(sources) + self._translator.extra_length)
        empty = {
            "texts": tf.zeros([0, num_answers], tf.string),
            "scores": tf.zeros([0, num_answers]),
        }
        rows = _rows_per_chunk((positions, _MAX_TOKENS))
        return {
            **_in_chunks(search_rows, tf.shape(text)[0], rows, empty),
            "truncated": truncated,
        }

    def _encode_pairs(self, text, translation):
        same = tf.debugging.assert_equal(
            tf.shape(text), tf.shape(translation), "There must be one translation for each text."
        )
        with tf.control_dependencies([same]):
            text = tf.identity(text)
        sources, is_cut = _encode(
            self._module.source_tokenizer, text, self._translator.max_source_length
        )
        targets, is_target_cut = _encode(
            self._module.target_tokenizer, translation, self._max_target_length
        )
        return sources, targets, is_cut | is_target_cut

    def _pieces(self, tokenizer, ids):
        """The spelling of each id: strings `[batch, length]`, `""` behind the last."""
        vocabulary = tf.constant(tokenizer.pieces(range(tokenizer.vocab_size)))
        pieces = ids.with_flat_values(tf.gather(vocabulary, ids.flat_values))
        return pieces.to_tensor(default_value="")


def _encode(tokenizer, text, max_length):
    """Tokenizes: ragged int32 `[batch, None]` with EOS, and bool `[batch]`, whether it was cut."""
    ids = tf.cast(tokenizer.tokenize(text), tf.int32)
    is_cut = ids.row_lengths() > max_length - 1
    ends = tf.fill([tf.shape(text)[0], 1], EOS_ID)
    return tf.concat([ids[:, : max_length - 1], ends], axis=1), is_cut


def _decoder_inputs(labels):
    """BOS and the labels but the last of each row, padded as they are."""
    shifted = tf.pad(labels[:, :-1], [[0, 0], [1, 0]], constant_values=BOS_ID)
    return tf.where(labels == PAD_ID, PAD_ID, shifted)


def _padded(ids, length=None):
    dense = ids.to_tensor(PAD_ID)  # [batch, longest]
    if length is None:
        return dense
    return tf.pad(dense, [[0, 0], [0, length - tf.shape(dense)[1]]], constant_values=PAD_ID)


def _longest(*rows):
    """The most ids in a row of any of the ragged tensors, at least 1."""
    return tf.reduce_max([tf.cast(ids.bounding_shape()[1], tf.int32) for ids in rows] + [1])


def _rows_per_chunk(*limits):
    """The most rows, at least 1, whose `(size of a row, bound)` all hold."""
    return tf.reduce_min([tf.maximum(bound // tf.maximum(size, 1), 1) for size, bound in limits])


def _in_chunks(function, num_rows, rows_per_chunk, empty):
    """Joins what a function gives for one chunk of rows after the other.

    Args:
        function: `function(start, end)`, the range of rows, to a dict of tensors `[rows, ...]`.
        num_rows: int32 scalar.
        rows_per_chunk: int32 scalar.
        empty: what the function gives for no row.

    Returns:
        Dict of tensors `[num_rows, ...]`.
    """

    def extend(start, found):
        end = tf.minimum(start + rows_per_chunk, num_rows)
        new = function(start, end)
        return end, {name: tf.concat([found[name], new[name]], axis=0) for name in found}

    shapes = {name: [None, *tensor.shape[1:]] for name, tensor in empty.items()}
    invariants = tf.TensorShape([]), {name: tf.TensorShape(shapes[name]) for name in shapes}
    _, found = tf.while_loop(
        lambda start, found: start < num_rows,
        extend,
        (tf.constant(0), empty),
        shape_invariants=invariants,
        parallel_iterations=1,
    )
    return found
