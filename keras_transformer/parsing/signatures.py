"""`ParserFunctions`: the signatures of a parser's SavedModel, from words to trees in brackets."""

import tensorflow as tf

from keras_transformer.errors import UserError
from keras_transformer.inference.served_functions import ServedFunctions, encode
from keras_transformer.layers.tensors import Tensor
from keras_transformer.parsing.trees import NO_TREE, PLACEHOLDER

_MOST_OPEN = 2**12  # constituents at the last word


class ParserFunctions(ServedFunctions):
    """The signatures of a parser; arguments as in `ServedFunctions`."""

    inputs = dict.fromkeys(("serving_default", "n_best", "limits"), ("text",))
    outputs = ("tree", "trees")

    def __init__(
        self,
        pipeline,
        search,
        dtype=None,
        num_streams=1,
        long_texts="split",
        quantization=None,
    ):
        if not pipeline.constrained:
            why = "constrained=False"
            if pipeline.tree_symbols is None:
                why = f"linearization={pipeline.linearization}, and a target vocabulary in which "
                why += "not every symbol of a tree is one token"
            rule = "Exports and servers do not repair trees, so the search must be constrained to "
            raise UserError(f"{rule}well-formed ones. Received: a Parser with {why}")
        super().__init__(pipeline, search, dtype, num_streams, long_texts, quantization)
        self._settings["linearization"] = pipeline.linearization.to_dict()

    def limits(self, text: Tensor) -> dict[str, Tensor]:
        words = _split_words(text)
        num_words = tf.cast(words.row_lengths(), tf.int32)
        return {
            **self._limits(_joined(words)),
            "num_words": num_words,
            "max_tree_tokens": self._pipeline.max_lengths(num_words),
        }

    def _answer(self, text, search, languages):
        words = _split_words(text)
        tokenizer, longest = self.module.source_tokenizer, self._pipeline.max_source_length
        sources, truncated = encode(tokenizer, _joined(words), longest)
        num_words = tf.cast(words.row_lengths(), tf.int32)

        def write(tokens, scores):
            trees = self._write_trees(words, tokens, scores)
            return tf.where((num_words == 0)[:, None], NO_TREE, trees)

        constrain = self._pipeline.well_formed_trees
        return self._search(sources, num_words, search, write, constrain), truncated

    def _write_trees(self, words, tokens, scores):
        """Returns trees in brackets `[rows, n]`, from ragged words, tokens and scores."""
        # The search makes well-formed trees only, so each symbol can be written by itself.
        root_label = self._pipeline.linearization.root_label
        # The word and the bracket that end each leaf; one more column for symbols after the last.
        endings = tf.strings.regex_replace(words.flat_values, r"\(", "-LRB-")
        endings = tf.strings.join([tf.strings.regex_replace(endings, r"\)", "-RRB-"), ")"])
        endings = words.with_flat_values(endings).to_tensor("")
        endings = tf.pad(endings, [[0, 0], [0, 1]], constant_values="")
        is_word = tf.gather(tf.constant(self._pipeline.tree_symbols.words), tokens)
        places = tf.cumsum(tf.cast(is_word, tf.int32), axis=2, exclusive=True)
        next_endings = tf.gather(endings, places, batch_dims=1)  # [rows, n, length]
        beginnings = tf.gather(tf.constant(self._beginnings()), tokens)
        written = tf.strings.join([beginnings, tf.where(is_word, next_endings, "")])
        if self._pipeline.linearization.joined:
            written, ends = self._closed(written, tokens)
            trees = tf.strings.join([tf.strings.reduce_join(written, axis=2), ends])
        else:
            trees = tf.strings.reduce_join(written, axis=2)
        trees = tf.strings.strip(trees)
        # If the search has found nothing, the best answer is a tree without constituents.
        leaves = tf.strings.join([f" ({PLACEHOLDER} ", endings])
        leaves = tf.strings.reduce_join(tf.where(endings == "", "", leaves), axis=1)
        flat = tf.strings.join([f"({root_label}", leaves, ")"])
        is_first = (tf.range(tf.shape(tokens)[1]) == 0)[None, :]
        return tf.where(is_first & (scores == float("-inf")), flat[:, None], trees)

    def _closed(self, written, tokens):
        """Returns joined symbols with their closing brackets, and the brackets after the last."""
        symbols = self._pipeline.tree_symbols
        closings = tf.constant([")" * number for number in symbols.closings])
        changes = tf.gather(tf.constant(symbols.openings - symbols.closings), tokens)
        num_open = tf.reduce_sum(changes, axis=2)  # [rows, n]
        ends = tf.fill(tf.shape(num_open), ")" * _MOST_OPEN)
        ends = tf.strings.substr(ends, tf.zeros_like(num_open), num_open)
        return tf.strings.join([written, tf.gather(closings, tokens)]), ends

    def _beginnings(self) -> list[str]:
        """Returns the text to write for each token of the target, without the word of a leaf."""
        symbols, has_tags = self._pipeline.tree_symbols, self._pipeline.linearization.tags
        beginnings = [""] * len(symbols.words)
        pieces = self._pipeline.target_tokenizer.pieces(range(len(beginnings)))
        for token, piece in enumerate(pieces):
            if self._pipeline.linearization.joined:
                if symbols.words[token]:
                    opened = piece.rstrip(")").replace("(", " (") if symbols.openings[token] else ""
                    beginnings[token] = f"{opened} ({PLACEHOLDER} "
            elif symbols.openings[token] >= 0:
                beginnings[token] = f" {piece}"
            elif symbols.closings[token] >= 0:
                beginnings[token] = ")"
            elif symbols.words[token]:
                beginnings[token] = f" ({piece if has_tags else PLACEHOLDER} "
        return beginnings


def _split_words(text):
    """Returns the words of each text in valid UTF-8: ragged strings `[batch, None]`."""
    return tf.strings.split(tf.strings.unicode_transcode(text, "UTF-8", "UTF-8", errors="replace"))


def _joined(words):
    return tf.strings.reduce_join(words, axis=-1, separator=" ")
