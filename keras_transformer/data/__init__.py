"""Tokenizers, corpora and batches.

TensorFlow, tensorflow-text and tensorflow-datasets are imported when something that needs them is
called, never by the import of this package.
"""

from keras_transformer.data.batch_plan import BatchShape
from keras_transformer.data.corpora import Corpus, PairsCorpus, ParallelTextCorpus, TsvCorpus
from keras_transformer.data.encoded_corpus import EncodedCorpus
from keras_transformer.data.prepared_corpus import PreparedCorpus, prepare_corpus
from keras_transformer.data.sentencepiece_tokenizer import (
    SentencePieceTokenizer,
    train_sentencepiece,
)
from keras_transformer.data.special_tokens import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from keras_transformer.data.subword_tokenizer import SubwordTokenizer, build_subword_vocabulary
from keras_transformer.data.text_lines import text_lines
from keras_transformer.data.tfds_corpus import TfdsCorpus
from keras_transformer.data.token_batches import TokenBatches
from keras_transformer.data.tokenizer_pair import load_tokenizer, save_tokenizer

__all__ = [
    "BOS_ID",
    "EOS_ID",
    "PAD_ID",
    "UNK_ID",
    "BatchShape",
    "Corpus",
    "EncodedCorpus",
    "PairsCorpus",
    "ParallelTextCorpus",
    "PreparedCorpus",
    "SentencePieceTokenizer",
    "SubwordTokenizer",
    "TfdsCorpus",
    "TokenBatches",
    "TsvCorpus",
    "build_subword_vocabulary",
    "load_tokenizer",
    "prepare_corpus",
    "save_tokenizer",
    "text_lines",
    "train_sentencepiece",
]
