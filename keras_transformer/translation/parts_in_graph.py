"""Splits long texts in a graph of TensorFlow, and joins the answers, as a `Translator` does.

Only a word that is longer than a whole source is not split; it will be truncated.
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from keras_transformer.inference.sentence_ends import (
    ENDS_JOINED,
    MAY_BE_SEVERAL,
    SPACE,
    split_sentences_in_graph,
)
from keras_transformer.inference.sentences import SentenceProfile
from keras_transformer.layers.tensors import Tensor

_WORD_END = "\ufdd0"  # a character that Unicode keeps out of texts


class TextParts(NamedTuple):
    """The parts of a batch of texts, in order."""

    texts: Tensor  # strings [parts], with the tags of their texts
    owners: Tensor  # int64 [parts], the index of the text of each part
    num_texts: Tensor


def split_texts(
    tokenizer: Any,
    texts: Tensor,
    max_subwords: int,
    profile: SentenceProfile | None,
    tags: Sequence[str],
    num_given: int = 0,
) -> TextParts:
    """Returns the parts of strings `[batch]`, as `Translator._split` does.

    `num_given` is the number of ids that the tokenizer puts before each text.
    """
    num_subwords, limit = _lengths(tokenizer, texts), max_subwords
    may_be_several = tf.zeros(tf.shape(texts), tf.bool)
    if profile is not None:
        limit = min(max_subwords, max(profile.longest, 1))
        may_be_several = tf.strings.regex_full_match(texts, MAY_BE_SEVERAL)
        if not profile.single_sentences:
            may_be_several &= num_subwords > profile.usual_length
    # Most requests have single sentences, which take less time this way.
    is_whole = (num_subwords <= limit) & ~may_be_several
    part_texts, owners = tf.cond(
        tf.reduce_all(is_whole),
        lambda: (texts, tf.range(tf.size(texts, tf.int64))),
        lambda: _split(tokenizer, texts, num_subwords, is_whole, limit, profile, tags, num_given),
    )
    return TextParts(part_texts, owners, tf.size(texts))


def _split(tokenizer, texts, num_subwords, is_whole, limit, profile, tags, num_given):
    """Returns the texts of the parts, and their owners."""
    tag_texts, rests = split_tags_in_graph(texts, tags)
    tagged = _Tagged(tokenizer, tag_texts, tf.maximum(_lengths(tokenizer, tag_texts), num_given))
    sentences = split_sentences_in_graph(rests, profile.abbreviations if profile else ())
    is_whole |= (sentences.row_lengths() < 2) & (num_subwords <= limit)
    # All sentences of a whole text are one group.
    limits = tf.where(is_whole, tf.int32.max, tf.maximum(limit - tagged.num_tags, 1))
    usual = limit
    if profile is not None:
        usual = 0 if profile.single_sentences else profile.usual_length
    limits_of_groups = tf.where(is_whole, limits, tf.minimum(usual, limits))
    groups, sizes = tagged.join_while_they_fit(sentences, limits, limits_of_groups)
    owners = groups.value_rowids()
    limits, *of_tags = (tf.gather(x, owners) for x in (limits, tag_texts, tagged.num_tags))
    # A sentence that is too long is split between words into parts of similar length.
    marked = tf.where(sizes > limits, _mark_word_ends(groups.values), groups.values)
    words, tagged = tf.strings.split(marked, _WORD_END), _Tagged(tokenizer, *of_tags)
    parts, _ = tagged.join_while_they_fit(words, limits, tagged.similar_limits(words, limits))
    owners, part_texts = tf.gather(owners, parts.value_rowids()), tagged.texts(parts)
    return tf.where(tf.gather(is_whole, owners), tf.gather(texts, owners), part_texts), owners


def join_answers(answers: Tensor, parts: TextParts) -> Tensor:
    """Returns the answer to each text, strings `[batch]`, from those to its parts."""
    needs_none = (answers == "") | tf.strings.regex_full_match(answers, ENDS_JOINED)
    spaced = tf.strings.join([answers, tf.where(needs_none, "", " ")])
    joined = tf.strings.unsorted_segment_join(spaced, parts.owners, parts.num_texts)
    return tf.strings.regex_replace(joined, " $", "")


def split_tags_in_graph(texts, tags):
    """Returns the tags that texts begin with, each text's with a space, and the rests."""
    if not tags:
        return tf.fill(tf.shape(texts), ""), texts
    known = "|".join(map(re.escape, sorted(tags, key=len, reverse=True)))
    found = f"^((?:[{SPACE}]*(?:{known}))+)[{SPACE}]*"
    has_tags = tf.strings.regex_full_match(texts, f"{found}(?s:.*)")
    tag_texts = tf.strings.regex_replace(texts, f"{found}(?s:.*)", r"\1 ")
    rests = tf.strings.regex_replace(texts, found, "", replace_global=False)
    return tf.where(has_tags, tag_texts, ""), rests


def _mark_word_ends(texts):
    marked = tf.strings.regex_replace(texts, f"([{SPACE}]+)([^{SPACE}])", f"\\1{_WORD_END}\\2")
    # In subword-nmt's notation, "play@@ house" is one word.
    return tf.strings.regex_replace(marked, f"(@@[{SPACE}]+){_WORD_END}", r"\1")


def _lengths(tokenizer, texts):
    return tf.cast(tokenizer.tokenize(texts).row_lengths(), tf.int32)


class _Tagged(NamedTuple):
    """The tags in front of the units of each text."""

    tokenizer: Any
    tag_texts: Tensor  # strings [texts]
    num_tags: Tensor  # int32 [texts], their subwords, or those that stand before each text

    def texts(self, units):
        """Returns units `[texts, units]` after the tags of their texts, strings `[all units]`."""
        return tf.strings.join([tf.gather(self.tag_texts, units.value_rowids()), units.values])

    def sizes(self, units):
        """Returns the numbers of subwords of units without the tags, int32 `[texts, units]`."""
        lengths = _lengths(self.tokenizer, self.texts(units))
        num_before = tf.gather(self.num_tags, units.value_rowids())
        return units.with_values(tf.maximum(lengths - num_before, 0))

    def similar_limits(self, units, limits):
        """Returns the limits that make groups of similar size."""
        sizes = self.sizes(units)
        totals, largest = tf.reduce_sum(sizes, axis=1), tf.reduce_max(sizes, axis=1)
        num_groups = tf.maximum(-(-totals // limits), 1)
        return tf.minimum(limits, -(-totals // num_groups) + largest - 1)

    def join_while_they_fit(self, units, limits, limits_of_groups):
        """Joins neighboring units; returns the groups `[texts, groups]` and the size of each."""
        is_start = _group_starts(self.sizes(units), limits_of_groups)
        groups = _join(units, is_start)
        # Units that have more subwords together than alone stay alone.
        sizes = self.sizes(groups).values
        is_over = sizes > tf.gather(limits, groups.value_rowids())
        is_start |= tf.gather(is_over, tf.cumsum(tf.cast(is_start, tf.int32)) - 1)
        groups = _join(units, is_start)
        return groups, self.sizes(groups).values


def _group_starts(sizes, limits):
    """Returns which units begin a group, bool `[all units]`; a larger unit is a group."""
    dense = tf.pad(sizes.to_tensor(), [[0, 0], [0, 1]])  # [texts, units + 1]
    width = tf.shape(dense)[1]

    def add(index, totals, starts):
        size = dense[:, index]
        is_start = (index == 0) | (size > limits - totals)
        return index + 1, tf.where(is_start, size, totals + size), starts.write(index, is_start)

    starts = tf.TensorArray(tf.bool, width)
    *_, starts = tf.while_loop(
        lambda index, *_: index < width, add, (0, tf.zeros_like(limits), starts)
    )
    # [units + 1, texts] -> [texts, units + 1] -> [all units]
    is_start = tf.transpose(tf.reshape(starts.stack(), [width, -1]))
    return tf.boolean_mask(is_start, tf.sequence_mask(sizes.row_lengths(), width))


def _join(units, is_start):
    groups = tf.cumsum(tf.cast(is_start, tf.int32)) - 1
    num_groups = tf.reduce_sum(tf.cast(is_start, tf.int32))
    joined = tf.strings.unsorted_segment_join(units.values, groups, num_groups)
    owners = tf.boolean_mask(units.value_rowids(), is_start)
    return tf.RaggedTensor.from_value_rowids(joined, owners, units.nrows(), validate=False)
