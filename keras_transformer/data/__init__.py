"""Tokenizers, corpora and batches."""

from keras_transformer import lazy_names

# Imported when they are used: not every name needs sentencepiece or TensorFlow.
_MODULES = {
    "batch_plan": ["BatchShape"],
    "corpora": ["Corpus", "PairsCorpus", "ParallelTextCorpus", "TfdsCorpus", "TsvCorpus"],
    "encoded_corpus": ["EncodedCorpus"],
    "lookup_tokenizers": ["MappedTokenizer", "SubwordTokenizer"],
    "mixed_corpus": ["MixedCorpus"],
    "preparation": ["prepare_corpus"],
    "prepared_corpus": ["PreparedCorpus"],
    "sentencepiece_tokenizer": ["SentencePieceTokenizer"],
    "token_batches": ["TokenBatches"],
    "tokenizer": ["BOS_ID", "EOS_ID", "PAD_ID", "UNK_ID"],
    "tokenizer_pair": ["load_tokenizer", "save_tokenizer"],
    "vocabularies": ["build_subword_vocabulary", "text_lines", "train_sentencepiece"],
}
__all__, __getattr__, __dir__ = lazy_names(__name__, _MODULES)
