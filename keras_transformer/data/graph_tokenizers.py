"""The tokenizers as `tf.Module`s, for raw strings in a SavedModel."""

import hashlib
from collections.abc import Sequence

import tensorflow as tf

from keras_transformer.data.tokenizer import (
    BOS_ID,
    EOS_ID,
    LANGUAGE,
    PAD_ID,
    SPACE,
    SPECIAL_PIECES,
    UNK_ID,
)
from keras_transformer.errors import UserError


class GraphTokenizer(tf.Module):
    """Has `tokenize` and `detokenize`, which can also be called in a SavedModel."""

    def __init__(self, resource, tokenize, detokenize, vocab_size):
        super().__init__()
        self._resource = resource  # An attribute, so that a SavedModel of this module holds it.

        # Not methods: these have only a weak reference to their module, which would be deleted too
        # early in `tokenizer.in_graph().tokenize(text)`.
        def tokenize_valid(text):
            valid = tf.strings.unicode_transcode(text, "UTF-8", "UTF-8", errors="replace")
            return tokenize(valid)

        def detokenize_visible(ids):
            # As in `Tokenizer.decode`: ragged int32 `[batch, None]`.
            before_eos = tf.cumsum(tf.cast(ids == EOS_ID, tf.int32), axis=1) == 0
            visible = before_eos & (ids != PAD_ID) & (ids != BOS_ID)
            known = tf.where((ids >= 0) & (ids < vocab_size), ids, UNK_ID)
            return detokenize(tf.ragged.boolean_mask(known, visible))

        text, ids = tf.TensorSpec([None], tf.string), tf.TensorSpec([None, None], tf.int32)
        self.tokenize = tf.function(tokenize_valid, [text], autograph=False)
        self.detokenize = tf.function(detokenize_visible, [ids], autograph=False)


def graph_sentencepiece(model: bytes, vocab_size: int) -> GraphTokenizer:
    """Returns SentencePiece in the graph, with the plain tensorflow-text operations.

    `FastSentencepieceTokenizer` loads a BPE model too, but returns other ids.
    """
    tokenizer = _sentencepiece(model, tf.int32)
    return GraphTokenizer(tokenizer, tokenizer.tokenize, tokenizer.detokenize, vocab_size)


def _sentencepiece(model, out_type):
    try:
        import tensorflow_text
    except ImportError as error:
        raise UserError(
            "Tokenizing in the graph needs tensorflow-text: pip install tensorflow-text "
            "(there is none for Windows)."
        ) from error
    # Loaded SavedModels share the tokenizers of one name in a process.
    name = f"sentencepiece_{hashlib.sha256(model).hexdigest()}"
    return tensorflow_text.SentencepieceTokenizer(model=model, out_type=out_type, name=name)


def graph_subwords(pieces) -> GraphTokenizer:
    """Returns whitespace pieces (from id 4 on) in the graph, as a table and string operations."""
    table, known = _vocabulary([*SPECIAL_PIECES, *pieces])

    def tokenize(text):
        split = tf.strings.split(text)
        return split.with_flat_values(tf.cast(table.lookup(split.flat_values), tf.int32))

    def detokenize(ids):
        split = ids.with_flat_values(tf.gather(known, ids.flat_values))
        joined = tf.strings.reduce_join(split, axis=-1, separator=" ")
        return tf.strings.regex_replace(joined, "@@( |$)", "")

    return GraphTokenizer(table, tokenize, detokenize, known.shape[0])


def graph_mapped_pieces(
    model: bytes,
    pieces: Sequence[str],
    texts: Sequence[bytes],
    languages: Sequence[str],
    has_controls: bool,
    beginning: Sequence[int],
) -> GraphTokenizer:
    """Returns a `MappedTokenizer` in the graph; `pieces` and `texts` are those of all ids."""
    tokenizer = _sentencepiece(model, tf.string)
    table, _ = _vocabulary(pieces)
    texts = tf.constant(texts)

    def split_with_code(text):
        has_code = tf.strings.regex_full_match(text, f"(?s)({LANGUAGE.pattern}).*")
        code = tf.strings.regex_replace(text, f"(?s)^({LANGUAGE.pattern}).*$", r"\1")
        if languages:  # Without a code, a text has no ids: an error would fail the whole batch.
            has_code &= tf.reduce_any(code[:, None] == tf.constant(languages), axis=1)
            text = tf.where(has_code, text, "")
        rest = tf.strings.regex_replace(text, f"(?s)^{LANGUAGE.pattern}", "", replace_global=False)
        codes = tf.RaggedTensor.from_row_lengths(code[has_code], tf.cast(has_code, tf.int64))
        return tf.concat([codes, tokenizer.tokenize(rest)], axis=1)

    def tokenize(text):
        split = tokenizer.tokenize(text) if has_controls else split_with_code(text)
        ids = split.with_flat_values(tf.cast(table.lookup(split.flat_values), tf.int32))
        if beginning:
            has_words = tf.cast(ids.row_lengths() > 0, tf.int64)
            begin = tf.tile(tf.constant(beginning), [tf.reduce_sum(has_words)])
            lengths = len(beginning) * has_words
            ids = tf.concat([tf.RaggedTensor.from_row_lengths(begin, lengths), ids], axis=1)
        return ids

    def detokenize(ids):
        split = ids.with_flat_values(tf.gather(texts, ids.flat_values))
        joined = tf.strings.reduce_join(split, axis=-1)
        valid = tf.strings.unicode_transcode(joined, "UTF-8", "UTF-8", errors="replace")
        joined = tf.strings.regex_replace(valid, SPACE, " ")
        return tf.strings.regex_replace(joined, "^ +| +$", "")

    return GraphTokenizer([tokenizer, table], tokenize, detokenize, len(pieces))


def _vocabulary(pieces):
    """Returns a table from pieces to ids, without the reserved pieces, and all pieces by id."""
    known = [piece.encode("utf-8") for piece in pieces]
    # Text that spells "</s>" must not end a sentence.
    keys, first = known[len(SPECIAL_PIECES) :], len(SPECIAL_PIECES)
    keys_and_ids = tf.lookup.KeyValueTensorInitializer(
        tf.constant(keys, tf.string, shape=[len(keys)]),
        tf.range(first, len(known), dtype=tf.int64),
    )
    return tf.lookup.StaticHashTable(keys_and_ids, default_value=UNK_ID), tf.constant(known)
