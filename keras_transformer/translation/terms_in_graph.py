"""Finds the terms of a glossary in a graph of TensorFlow, as a `Glossary` does."""

import tensorflow as tf

from keras_transformer.data.tokenizer import PAD_ID, UNK_ID, Tokenizer
from keras_transformer.inference.glossary import MATCH, WORD, Glossary, ids_of_terms, words_pattern
from keras_transformer.inference.sentence_ends import SPACE
from keras_transformer.layers.tensors import Tensor


class GraphGlossary(tf.Module):
    """A glossary in a graph; `tokenizer` is that of the target, and `in_graph` its module."""

    def __init__(self, glossary: Glossary, tokenizer: Tokenizer, in_graph: tf.Module) -> None:
        super().__init__()
        known = ids_of_terms(glossary, tokenizer)
        numbers = {term: number for number, term in enumerate(known)}
        sources = tf.constant([*glossary.terms], tf.string, shape=[len(glossary.terms)])
        values = [numbers[target] for target in glossary.terms.values()]
        values = tf.constant(values, tf.int32, shape=[len(values)])
        pairs = tf.lookup.KeyValueTensorInitializer(sources, values)
        self._table = tf.lookup.StaticHashTable(pairs, default_value=-1)
        self._ids = tf.ragged.constant([*known.values()], tf.int32, ragged_rank=1)
        self._glossary, self._in_graph = glossary, in_graph
        self._num_before = len(tokenizer.beginning)

    def encode(self, texts: Tensor, limits: Tensor) -> Tensor:
        """Returns the ids of the terms in texts, int32 `[batch, terms, length]`, padded.

        Terms of a text whose ids, with EOS, are more than its limit are left out.
        """
        replace = tf.strings.regex_replace
        marked = replace(texts, words_pattern(), f"{WORD}\\1{WORD}")
        marked = replace(marked, f"({self._glossary.pattern})", f"{MATCH}\\1{MATCH}")
        pieces = tf.strings.split(marked, MATCH)  # Every second one is a match.
        found = tf.ragged.boolean_mask(pieces, tf.ragged.range(pieces.row_lengths()) % 2 == 1)
        terms = replace(found.values, WORD, "")
        names = replace(terms, f"[{SPACE}]+", " ")
        in_small_letters = self._table.lookup(tf.strings.lower(names, encoding="utf-8"))
        numbers = self._table.lookup(names)
        numbers = tf.where(numbers < 0, in_small_letters, numbers)
        # Others are placeholders.
        spelled = tf.cast(self._in_graph.tokenize(terms), tf.int32)[:, self._num_before :]
        others = self._ids.nrows(tf.int32) + tf.range(tf.size(terms))
        ids = tf.gather(tf.concat([self._ids, spelled], 0), tf.where(numbers < 0, others, numbers))
        can_spell = found.with_values(~tf.reduce_any(ids == UNK_ID, axis=1))
        ids = tf.ragged.boolean_mask(found.with_values(ids), can_spell).to_tensor(PAD_ID)
        ids = tf.pad(ids, [[0, 0], [0, 1], [0, 1]], constant_values=PAD_ID)
        lengths = tf.reduce_sum(tf.cast(ids != PAD_ID, tf.int32), axis=2)
        fits = tf.cumsum(lengths, axis=1) + self._num_before < limits[:, None]
        return tf.where(fits[:, :, None], ids, PAD_ID)

    def tidy(self, answers: Tensor, texts: Tensor) -> Tensor:
        """Returns `Glossary.tidy` of answers `[batch, n]` to texts `[batch]`."""
        for pattern, replacement in self._glossary.space_of_tags:
            has_space = tf.strings.regex_full_match(texts, f"(?s:.*){pattern}(?s:.*)")
            tidied = tf.strings.regex_replace(answers, pattern, replacement)
            answers = tf.where(has_space[:, None], answers, tidied)
        return answers
