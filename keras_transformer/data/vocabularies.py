"""`learn_vocabularies`: the tokenizers of a training, learned from its corpus."""

import logging
from collections.abc import Callable, Iterable

from keras_transformer.data.mixed_corpus import MixedCorpus
from keras_transformer.data.sentencepiece_tokenizer import train_sentencepiece
from keras_transformer.data.subword_tokenizer import build_subword_vocabulary
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.data.tokenizer_pair import TokenizerPair
from keras_transformer.errors import UserError

_LOGGER = logging.getLogger(__name__)


def learn_vocabularies(
    corpus: Iterable, settings, report: Callable[[str], object] = _LOGGER.info
) -> TokenizerPair:
    """Returns the tokenizers that `TrainingSettings` describe, learned from pairs of `str`."""
    size = "all" if settings.vocab_size is None else f"{settings.vocab_size:,}"
    sides = "for both languages" if settings.shared_vocabulary else "for each language"
    report(f"Learning a vocabulary of {size} {settings.tokenizer} pieces {sides}.")
    symbols = corpus.symbols if isinstance(corpus, MixedCorpus) else ()
    if settings.shared_vocabulary:
        return TokenizerPair(learn_vocabulary(corpus, settings, symbols=symbols))
    source = learn_vocabulary((pair[0] for pair in corpus), settings, symbols=symbols)
    return TokenizerPair(source, learn_vocabulary((pair[1] for pair in corpus), settings))


def learn_vocabulary(
    lines: Iterable, settings, min_count: int = 1, symbols: tuple[str, ...] = ()
) -> Tokenizer:
    """Returns a tokenizer whose vocabulary is learned from lines or pairs of them."""
    if settings.tokenizer == "subword":
        return build_subword_vocabulary(lines, settings.vocab_size, min_count)
    if settings.vocab_size is None:
        raise UserError("`vocab_size` must be set to learn subwords. Received: vocab_size=None")
    size, kind = settings.vocab_size, settings.tokenizer
    return train_sentencepiece(lines, size, kind, allow_fewer=True, symbols=symbols)
