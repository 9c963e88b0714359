"""Tokenizers, corpora and batches."""

from keras_transformer import lazy_names

# Imported when they are used: not every name needs sentencepiece or TensorFlow.
_MODULES = {
    "batch_plan": ["BatchShape"],
    "corpora": ["ParallelTextCorpus", "TfdsCorpus", "TsvCorpus"],
    "encoded_corpus": ["Corpus", "EncodedCorpus", "PairsCorpus"],
    "lines": ["text_lines"],
    "mapped_tokenizer": ["MappedTokenizer"],
    "mixed_corpus": ["MixedCorpus"],
    "preparation": ["prepare_corpus"],
    "prepared_corpus": ["PreparedCorpus"],
    "sentencepiece_tokenizer": ["SentencePieceTokenizer", "train_sentencepiece"],
    "subword_tokenizer": ["SubwordTokenizer", "build_subword_vocabulary"],
    "tokenizer": ["BOS_ID", "EOS_ID", "PAD_ID", "UNK_ID"],
    "token_batches": ["TokenBatches"],
    "tokenizer_pair": ["load_tokenizer", "save_tokenizer"],
}
__all__, __getattr__, __dir__ = lazy_names(__name__, _MODULES)
