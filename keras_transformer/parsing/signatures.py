"""The functions of a parser's SavedModel, from words to bracketed trees; as in `signatures`.

The search is constrained to well-formed trees, so a tree is written symbol by symbol, with the
next word of the sentence wherever a symbol stands for one.
"""

import numpy as np
import tensorflow as tf

from keras_transformer.export.graph_rows import encode
from keras_transformer.export.served_module import ServedFunctions
from keras_transformer.parsing.linearization import PLACEHOLDER
from keras_transformer.parsing.treebank import NO_TREE


class ParserFunctions(ServedFunctions):
    """The signatures of a parser."""

    inputs = dict.fromkeys(("serving_default", "n_best", "limits"), ("text",))

    def __init__(self, module, pipeline, model, search, num_streams):
        super().__init__(module, pipeline, model, search, num_streams)
        self._settings["linearization"] = pipeline.linearization.to_dict()

    def serving_default(self, text):
        found, truncated = self._parse(text, self._best)
        return {
            "tree": found["answers"][:, 0],
            "score": found["scores"][:, 0],
            "truncated": truncated,
        }

    def n_best(self, text):
        found, truncated = self._parse(text, self._several)
        return {"trees": found["answers"], "scores": found["scores"], "truncated": truncated}

    def limits(self, text):
        words = _split_words(text)
        num_tokens = self._num_tokens(words)
        longest = self._pipeline.max_source_length
        num_words = tf.cast(words.row_lengths(), tf.int32)
        return {
            "num_words": num_words,
            "num_tokens": num_tokens,
            "max_source_tokens": tf.fill(tf.shape(text), longest),
            "max_tree_tokens": self._pipeline.max_lengths(num_words),
            "truncated": num_tokens > longest,
            "settings": self._settings_of(text),
        }

    def _num_tokens(self, words):
        lengths = self._module.source_tokenizer.tokenize(_joined(words)).row_lengths()
        return tf.cast(lengths, tf.int32) + 1  # and EOS

    def _parse(self, text, search):
        words = _split_words(text)
        sources, truncated = encode(
            self._module.source_tokenizer, _joined(words), self._pipeline.max_source_length
        )
        num_words = tf.cast(words.row_lengths(), tf.int32)

        def write(start, end, tokens, scores):
            trees = self._write_trees(words[start:end], tokens, scores)
            return tf.where((num_words[start:end] == 0)[:, None], NO_TREE, trees)

        constrain = self._pipeline.well_formed_trees
        return self._search(sources, num_words, search, write, constrain), truncated

    def _write_trees(self, words, tokens, scores):
        """Writes trees in brackets `[rows, n]` from ragged words, tokens and scores."""
        linearization, symbols = self._pipeline.linearization, self._pipeline.tree_symbols
        pieces = self._pipeline.target_tokenizer.pieces(range(len(symbols.words)))
        beginnings = [""] * len(pieces)
        for token, piece in enumerate(pieces):
            if symbols.openings[token] >= 0:
                beginnings[token] = f" {piece}"
            elif symbols.closings[token] >= 0:
                beginnings[token] = ")"
            elif symbols.words[token]:
                beginnings[token] = f" ({piece if linearization.tags else PLACEHOLDER} "
        endings = words.with_flat_values(tf.strings.join([_escaped(words.flat_values), ")"]))
        # A column more, for what is behind the last word.
        endings = tf.pad(endings.to_tensor(""), [[0, 0], [0, 1]], constant_values="")
        is_word = tf.gather(tf.constant(np.array(symbols.words)), tokens)
        places = tf.cumsum(tf.cast(is_word, tf.int32), axis=2, exclusive=True)
        num_answers, length = tf.shape(tokens)[1], tf.shape(tokens)[2]
        places = tf.reshape(places, [-1, num_answers * length])
        of_symbols = tf.reshape(tf.gather(endings, places, batch_dims=1), tf.shape(tokens))
        of_symbols = tf.where(is_word, of_symbols, "")
        written = tf.strings.join([tf.gather(tf.constant(beginnings), tokens), of_symbols])
        trees = tf.strings.strip(tf.strings.reduce_join(written, axis=2))
        # Where the search has found nothing the best answer has no constituents but the root.
        leaves = tf.strings.join([f" ({PLACEHOLDER} ", endings])
        leaves = tf.strings.reduce_join(tf.where(endings == "", "", leaves), axis=1)
        flat = tf.strings.join([f"({linearization.root_label}", leaves, ")"])
        is_first = (tf.range(num_answers) == 0)[None, :]
        is_flat = is_first & (scores == float("-inf"))
        return tf.where(is_flat, flat[:, None], trees)


def _split_words(text):
    """The words of each text, valid UTF-8: ragged strings `[batch, None]`."""
    return tf.strings.split(tf.strings.unicode_transcode(text, "UTF-8", "UTF-8", errors="replace"))


def _joined(words):
    return tf.strings.reduce_join(words, axis=-1, separator=" ")


def _escaped(words):
    words = tf.strings.regex_replace(words, r"\(", "-LRB-")
    return tf.strings.regex_replace(words, r"\)", "-RRB-")
