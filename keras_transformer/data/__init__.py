"""From text to batches: tokenizers, corpora and token batches; and constituency trees.

TensorFlow, tensorflow-text and tensorflow-datasets are imported when something that needs them is
called, never by the import of this package.
"""

from keras_transformer.data.batch_shapes import BatchShape
from keras_transformer.data.corpora import Corpus, PairsCorpus, ParallelTextCorpus, TsvCorpus
from keras_transformer.data.encoded_corpus import EncodedCorpus
from keras_transformer.data.number_corpus import number_corpus
from keras_transformer.data.prepared_corpus import PreparedCorpus, prepare_corpus
from keras_transformer.data.sentence_profile import SentenceProfile
from keras_transformer.data.sentencepiece_tokenizer import SentencePieceTokenizer
from keras_transformer.data.sentencepiece_training import train_sentencepiece
from keras_transformer.data.special_tokens import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from keras_transformer.data.subword_tokenizer import SubwordTokenizer, build_subword_vocabulary
from keras_transformer.data.text_lines import text_lines
from keras_transformer.data.tfds_corpus import TfdsCorpus
from keras_transformer.data.token_batches import TokenBatches
from keras_transformer.data.tokenizers import load_tokenizer, save_tokenizer
from keras_transformer.data.tree_drawing import draw_tree, format_tree
from keras_transformer.data.tree_linearization import Linearization
from keras_transformer.data.tree_repair import RebuiltTree
from keras_transformer.data.tree_vocabulary import TreeSymbols, tree_symbols
from keras_transformer.data.treebank import clean_tree, read_tree_lines, read_trees, write_trees
from keras_transformer.data.treebank_corpus import TreebankCorpus
from keras_transformer.data.trees import Tree

__all__ = [
    "BOS_ID",
    "EOS_ID",
    "PAD_ID",
    "UNK_ID",
    "BatchShape",
    "Corpus",
    "EncodedCorpus",
    "Linearization",
    "PairsCorpus",
    "ParallelTextCorpus",
    "PreparedCorpus",
    "RebuiltTree",
    "SentencePieceTokenizer",
    "SentenceProfile",
    "SubwordTokenizer",
    "TfdsCorpus",
    "TokenBatches",
    "Tree",
    "TreeSymbols",
    "TreebankCorpus",
    "TsvCorpus",
    "build_subword_vocabulary",
    "clean_tree",
    "draw_tree",
    "format_tree",
    "load_tokenizer",
    "number_corpus",
    "prepare_corpus",
    "read_tree_lines",
    "read_trees",
    "save_tokenizer",
    "text_lines",
    "train_sentencepiece",
    "tree_symbols",
    "write_trees",
]
