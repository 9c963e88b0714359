"""Finds the terms of a glossary in a graph of TensorFlow, as a `Glossary` does."""

import tensorflow as tf

from keras_transformer.data.tokenizer import PAD_ID, UNK_ID, Tokenizer
from keras_transformer.inference.glossary import Glossary, ids_of_terms
from keras_transformer.inference.sentence_ends import SPACE
from keras_transformer.layers.tensors import Tensor

_END = "\ufdd0"  # a character that Unicode keeps out of texts, after each unit


class GraphGlossary(tf.Module):
    """A glossary in a graph; `tokenizer` is that of the target, and `in_graph` its module."""

    def __init__(self, glossary: Glossary, tokenizer: Tokenizer, in_graph: tf.Module) -> None:
        super().__init__()
        known = ids_of_terms(glossary, tokenizer)
        numbers = {term: number for number, term in enumerate(known)}
        # A table must not be empty, as that of placeholders only would be.
        values = {"": -1} | {source: numbers[target] for source, target in glossary.terms.items()}
        keys = tf.constant([*values], tf.string)
        pairs = tf.lookup.KeyValueTensorInitializer(keys, tf.constant([*values.values()], tf.int32))
        self._table = tf.lookup.StaticHashTable(pairs, default_value=-1)
        self._ids = tf.ragged.constant([*known.values()], tf.int32, ragged_rank=1)
        self._glossary, self._in_graph = glossary, in_graph
        self._num_before = len(tokenizer.beginning)

    def encode(self, texts: Tensor, limits: Tensor) -> Tensor:
        """Returns the ids of the terms in texts, int32 `[batch, terms, length]`, padded.

        Terms of a text whose ids, with EOS, are more than its limit are left out.
        """
        found, terms = self._find(texts)
        numbers = found.values  # Those below 0 are placeholders.
        spelled = tf.cast(self._in_graph.tokenize(terms), tf.int32)[:, self._num_before :]
        others = self._ids.nrows(tf.int32) + tf.range(tf.size(terms))
        ids = tf.gather(tf.concat([self._ids, spelled], 0), tf.where(numbers < 0, others, numbers))
        can_spell = found.with_values(~tf.reduce_any(ids == UNK_ID, axis=1))
        ids = tf.ragged.boolean_mask(found.with_values(ids), can_spell).to_tensor(PAD_ID)
        ids = tf.pad(ids, [[0, 0], [0, 1], [0, 1]], constant_values=PAD_ID)
        lengths = tf.reduce_sum(tf.cast(ids != PAD_ID, tf.int32), axis=2)
        fits = tf.cumsum(lengths, axis=1) + self._num_before < limits[:, None]
        return tf.where(fits[:, :, None], ids, PAD_ID)

    def _find(self, texts):
        """Returns the numbers of terms, ragged int32 `[batch, terms]`, -1 for a placeholder.

        The second result are the texts of all terms.
        """
        units = tf.strings.regex_replace(texts, f"({self._glossary.units})", f"\\1{_END}")
        units = tf.strings.split(tf.strings.regex_replace(units, f"{_END}$", ""), _END)
        lengths, units = tf.cast(units.row_lengths(), tf.int32), units.to_tensor("")
        units = tf.pad(units, [[0, 0], [0, 1]], constant_values="")  # [batch, units]: at least one
        units = tf.where(tf.strings.regex_full_match(units, f"[{SPACE}]+"), " ", units)
        positions = tf.range(tf.shape(units)[1])
        sizes = tf.zeros(tf.shape(units), tf.int32)
        if self._glossary.placeholders:
            is_kept = tf.strings.regex_full_match(units, self._glossary.placeholders)
            sizes = tf.cast(is_kept, tf.int32)
        numbers, key, following = tf.fill(tf.shape(units), -1), units, units
        for size in range(1, self._glossary.max_units + 1):
            in_small_letters = self._table.lookup(tf.strings.lower(key, encoding="utf-8"))
            new = self._table.lookup(key)
            new = tf.where(new < 0, in_small_letters, new)
            is_term = (new >= 0) & (positions + size <= lengths[:, None])
            numbers, sizes = tf.where(is_term, new, numbers), tf.where(is_term, size, sizes)
            following = tf.pad(following[:, 1:], [[0, 0], [0, 1]], constant_values="")
            key = tf.strings.join([key, following])

        def step(ends, column):
            position, sizes = column
            return tf.where((sizes > 0) & (position >= ends), position + sizes, ends)

        # A term begins where the term before has ended.
        ends = tf.scan(step, (positions, tf.transpose(sizes)), tf.zeros_like(lengths))
        ends = tf.concat([tf.zeros_like(lengths)[None], ends], axis=0)  # [1 + units, batch]
        begins = tf.transpose(ends[1:] > ends[:-1])
        numbers = tf.ragged.boolean_mask(numbers, begins)
        return numbers, tf.boolean_mask(units, begins)

    def tidy(self, answers: Tensor, texts: Tensor) -> Tensor:
        """Returns `Glossary.tidy` of answers `[batch, n]` to texts `[batch]`."""
        for pattern, replacement in self._glossary.space_of_tags:
            has_space = tf.strings.regex_full_match(texts, f"(?s:.*){pattern}(?s:.*)")
            tidied = tf.strings.regex_replace(answers, pattern, replacement)
            answers = tf.where(has_space[:, None], answers, tidied)
        return answers
