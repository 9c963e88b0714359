"""The tokenizers as `tf.Module`s, for raw strings in a SavedModel."""

import hashlib

import tensorflow as tf

from keras_transformer.data.tokenizer import BOS_ID, EOS_ID, PAD_ID, SPECIAL_PIECES, UNK_ID
from keras_transformer.errors import UserError

_TEXT = tf.TensorSpec([None], tf.string)
_IDS = tf.TensorSpec([None, None], tf.int32)


class GraphTokenizer(tf.Module):
    """Base class with `tokenize` and `detokenize`, which can also be called in a SavedModel."""

    def __init__(self, vocab_size: int):
        super().__init__()
        self._vocab_size = vocab_size

        # A decorated method has only a weak reference to its module, which would be deleted too
        # early in `tokenizer.in_graph().tokenize(text)`.
        def tokenize(text):
            valid = tf.strings.unicode_transcode(text, "UTF-8", "UTF-8", errors="replace")
            return self._tokenize(valid)

        self.tokenize = tf.function(tokenize, [_TEXT], autograph=False)
        self.detokenize = tf.function(lambda ids: self._detokenize(ids), [_IDS], autograph=False)


class GraphSentencePieceTokenizer(GraphTokenizer):
    """SentencePiece in the graph, with the plain tensorflow-text operations.

    `FastSentencepieceTokenizer` loads a BPE model too, but returns other ids.
    """

    def __init__(self, model: bytes, vocab_size: int):
        try:
            import tensorflow_text
        except ImportError as error:
            raise UserError(
                "Tokenizing in the graph needs tensorflow-text: pip install tensorflow-text "
                "(there is none for Windows)."
            ) from error
        super().__init__(vocab_size)
        # An attribute, so that a SavedModel of this module holds the model. Loaded SavedModels
        # share the tokenizers of one name in a process, so the name is a digest of the model.
        self._tokenizer = tensorflow_text.SentencepieceTokenizer(
            model=model,
            out_type=tf.int32,
            name=f"sentencepiece_{hashlib.sha256(model).hexdigest()}",
        )

    def _tokenize(self, text):
        return self._tokenizer.tokenize(text)

    def _detokenize(self, ids):
        return self._tokenizer.detokenize(_visible_ids(ids, self._vocab_size))


class GraphSubwordTokenizer(GraphTokenizer):
    """Whitespace pieces in the graph, with a lookup table and string operations of TensorFlow."""

    def __init__(self, pieces):  # from id 4 on
        super().__init__(len(SPECIAL_PIECES) + len(pieces))
        keys = [piece.encode("utf-8") for piece in pieces]
        # Without the reserved pieces: text that spells "</s>" must not end a sentence.
        self._ids = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(
                tf.constant(keys, tf.string, shape=[len(keys)]),
                tf.range(len(SPECIAL_PIECES), self._vocab_size, dtype=tf.int64),
            ),
            default_value=UNK_ID,
        )
        self._pieces = tf.constant([piece.encode("utf-8") for piece in SPECIAL_PIECES] + keys)

    def _tokenize(self, text):
        pieces = tf.strings.split(text)
        return pieces.with_flat_values(tf.cast(self._ids.lookup(pieces.flat_values), tf.int32))

    def _detokenize(self, ids):
        visible = _visible_ids(ids, self._vocab_size)
        pieces = visible.with_flat_values(tf.gather(self._pieces, visible.flat_values))
        joined = tf.strings.reduce_join(pieces, axis=-1, separator=" ")
        return tf.strings.regex_replace(joined, "@@( |$)", "")


def _visible_ids(ids, vocab_size):
    """int32 `[batch, length]` to ragged int32 `[batch, None]`; see `Tokenizer.decode`."""
    before_eos = tf.cumsum(tf.cast(ids == EOS_ID, tf.int32), axis=1) == 0
    visible = before_eos & (ids != PAD_ID) & (ids != BOS_ID)
    known = tf.where((ids >= 0) & (ids < vocab_size), ids, UNK_ID)
    return tf.ragged.boolean_mask(known, visible)
