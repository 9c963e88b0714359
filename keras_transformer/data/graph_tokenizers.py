"""The tokenizers as `tf.Module`s, for raw strings in a SavedModel."""

import hashlib

import tensorflow as tf

from keras_transformer.data.tokenizer import BOS_ID, EOS_ID, PAD_ID, SPECIAL_PIECES, UNK_ID
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
    try:
        import tensorflow_text
    except ImportError as error:
        raise UserError(
            "Tokenizing in the graph needs tensorflow-text: pip install tensorflow-text "
            "(there is none for Windows)."
        ) from error
    # Loaded SavedModels share the tokenizers of one name in a process.
    name = f"sentencepiece_{hashlib.sha256(model).hexdigest()}"
    tokenizer = tensorflow_text.SentencepieceTokenizer(model=model, out_type=tf.int32, name=name)
    return GraphTokenizer(tokenizer, tokenizer.tokenize, tokenizer.detokenize, vocab_size)


def graph_subwords(pieces) -> GraphTokenizer:
    """Returns whitespace pieces (from id 4 on) in the graph, as a table and string operations."""
    keys, first = [piece.encode("utf-8") for piece in pieces], len(SPECIAL_PIECES)
    vocab_size = first + len(keys)
    # Without the reserved pieces: text that spells "</s>" must not end a sentence.
    numbers = tf.range(first, vocab_size, dtype=tf.int64)
    keys_and_ids = tf.lookup.KeyValueTensorInitializer(
        tf.constant(keys, tf.string, shape=[len(keys)]), numbers
    )
    table = tf.lookup.StaticHashTable(keys_and_ids, default_value=UNK_ID)
    known = tf.constant([piece.encode("utf-8") for piece in SPECIAL_PIECES] + keys)

    def tokenize(text):
        split = tf.strings.split(text)
        return split.with_flat_values(tf.cast(table.lookup(split.flat_values), tf.int32))

    def detokenize(ids):
        split = ids.with_flat_values(tf.gather(known, ids.flat_values))
        joined = tf.strings.reduce_join(split, axis=-1, separator=" ")
        return tf.strings.regex_replace(joined, "@@( |$)", "")

    return GraphTokenizer(table, tokenize, detokenize, vocab_size)
