"""The functions of a parser's SavedModel, from words to bracketed trees; as in `signatures`.

The search is constrained to well-formed trees, so a tree is written symbol by symbol, with the
next word of the sentence wherever a symbol stands for one.
"""

import numpy as np
import tensorflow as tf

from keras_transformer.export.graph_rows import (
    chunk_seed,
    encode,
    in_chunks,
    longest_row,
    padded,
    rows_per_chunk,
)
from keras_transformer.export.served_module import ServedModule, settings, several_answers
from keras_transformer.inference.batch_inference import one_answer, search_ids
from keras_transformer.parsing.linearization import PLACEHOLDER
from keras_transformer.parsing.parser import MAX_BATCH_TOKENS
from keras_transformer.parsing.treebank import NO_TREE
from keras_transformer.parsing.well_formed_trees import WellFormedTrees

_TEXT = tf.TensorSpec([None], tf.string, name="text")
_INPUTS = {"serving_default": [_TEXT], "n_best": [_TEXT], "limits": [_TEXT]}


def parser_module(parser, model, search, num_streams=1):
    """Returns the `ServedModule` of a parser.

    Args:
        parser: a `Parser` whose search is constrained to trees.
        model: the parser's model, or a copy of another dtype.
        search: a search of `keras_transformer.decoding`.
        num_streams: parts of a request that are searched at the same time.
    """
    return ServedModule(
        parser,
        model,
        lambda module: _Functions(module, parser, model, search, num_streams),
        _INPUTS,
        num_streams,
    )


class _Functions:
    """The functions of the signatures; `module` holds what a SavedModel has to track."""

    def __init__(self, module, parser, model, search, num_streams):
        self._module = module
        self._num_streams = num_streams
        self._parser = parser
        self._model = model
        self._best, self._several = one_answer(search), several_answers(search)
        more = {"linearization": parser.linearization.to_dict(), "num_streams": num_streams}
        self._settings = settings(parser, model, search, **more)

    def serving_default(self, text):
        found = self._search(text, self._best)
        return {
            "tree": found["trees"][:, 0],
            "score": found["scores"][:, 0],
            "truncated": found["truncated"],
        }

    def n_best(self, text):
        return self._search(text, self._several)

    def limits(self, text):
        words = _split_words(text)
        num_tokens = self._num_tokens(words)
        longest = self._parser.max_source_length
        num_words = tf.cast(words.row_lengths(), tf.int32)
        return {
            "num_words": num_words,
            "num_tokens": num_tokens,
            "max_source_tokens": tf.fill(tf.shape(text), longest),
            "max_tree_tokens": self._parser.max_lengths(num_words),
            "truncated": num_tokens > longest,
            "settings": tf.fill(tf.shape(text), self._settings),
        }

    def _num_tokens(self, words):
        lengths = self._module.source_tokenizer.tokenize(_joined(words)).row_lengths()
        return tf.cast(lengths, tf.int32) + 1  # and EOS

    def _search(self, text, search):
        """Parses: `trees` and `scores` `[batch, n]`, and `truncated` `[batch]`."""
        words = _split_words(text)
        sources, truncated = encode(
            self._module.source_tokenizer, _joined(words), self._parser.max_source_length
        )
        num_answers = getattr(search, "n_best", search.width)

        def search_rows(start, end):
            num_words = tf.cast(words[start:end].row_lengths(), tf.int32)
            max_lengths = self._parser.max_lengths(num_words)
            is_tree = WellFormedTrees(num_words, *self._parser.tree_symbols)
            source = padded(sources[start:end])
            options = {"constraints": [is_tree], **chunk_seed(search, start)}
            result = search_ids(self._model, source, max_lengths, search, **options)
            is_empty = (num_words == 0)[:, None]
            scores = tf.cast(result.scores, tf.float32)
            trees = self._write_trees(words[start:end], result.tokens, scores)
            return {
                "trees": tf.where(is_empty, NO_TREE, trees),
                "scores": tf.where(is_empty, 0.0, scores),
            }

        limit = tf.reduce_max(self._parser.max_lengths(longest_row(words)))
        positions = search.width * (longest_row(sources) + limit)
        empty = {
            "trees": tf.zeros([0, num_answers], tf.string),
            "scores": tf.zeros([0, num_answers]),
        }
        rows = rows_per_chunk((positions, MAX_BATCH_TOKENS))
        return {
            **in_chunks(search_rows, tf.shape(text)[0], rows, empty, self._num_streams),
            "truncated": truncated,
        }

    def _write_trees(self, words, tokens, scores):
        """Bracketed trees `[rows, n]` of ragged words, tokens `[rows, n, length]` and scores."""
        linearization, symbols = self._parser.linearization, self._parser.tree_symbols
        pieces = self._parser.target_tokenizer.pieces(range(len(symbols.words)))
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
