"""Profile of the sentences in a training text, which decides how longer texts are split."""

import collections
import dataclasses
import re
from collections.abc import Iterable

import numpy as np

from keras_transformer.data.encoded_corpus import EncodedCorpus
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.inference.sentence_splitting import split_sentences, word_key
from keras_transformer.settings.setting import COUNT_OR_ZERO, SWITCH, Rule, Settings, setting

# Maximum number of texts that are searched for sentence ends.
_MAX_TEXTS = 50_000
_USUAL = 0.99
# Some single sentences look like two: a title in quotation marks, a list.
_SINGLE = 0.95
_MIN_COUNT = 2
_LONGEST_ABBREVIATION = 6
_WORDS = Rule(tuple, "a list of words", lambda words: all(isinstance(one, str) for one in words))


@dataclasses.dataclass(frozen=True)
class SentenceProfile(Settings):
    """Lengths and sentence ends of the sources that a model was trained on.

    Args:
        usual_length: 99th percentile of the number of subwords of a source, without EOS.
        longest: Number of subwords of the longest source.
        single_sentences: Whether at least 95 % of the sources are one sentence.
        abbreviations: Words whose full stop does not end a sentence, in lower case, with 0 for each
            digit.

    Raises:
        ValueError: if a value is of another type, or negative.

    Example:

    >>> from keras_transformer.data import EncodedCorpus, PairsCorpus, SubwordTokenizer
    >>> from keras_transformer.inference import SentenceProfile
    >>> tokenizer = SubwordTokenizer(["a", "house."])
    >>> corpus = EncodedCorpus.from_corpus(PairsCorpus([("a house.", "a")]), tokenizer)
    >>> SentenceProfile.from_corpus(corpus, tokenizer)
    SentenceProfile(usual_length=2, longest=2, single_sentences=True, abbreviations=())
    """

    usual_length: int = setting(dataclasses.MISSING, COUNT_OR_ZERO)
    longest: int = setting(dataclasses.MISSING, COUNT_OR_ZERO)
    single_sentences: bool = setting(dataclasses.MISSING, SWITCH)
    abbreviations: tuple[str, ...] = setting((), _WORDS)

    @classmethod
    def from_corpus(cls, corpus: EncodedCorpus, tokenizer: Tokenizer) -> "SentenceProfile":
        """Returns the profile of a corpus.

        Args:
            corpus: an `EncodedCorpus`.
            tokenizer: the source's tokenizer, which turns ids back into text.
        """
        lengths = corpus.source_lengths - 1  # without EOS
        offsets, ids = corpus.source_offsets, corpus.source_ids
        step = -(-len(corpus) // _MAX_TEXTS)
        rows = [ids[offsets[row] : offsets[row + 1]] for row in range(0, len(corpus), step)]
        texts = tokenizer.decode_batch(rows)
        abbreviations = _find_abbreviations(texts)
        num_single = sum(len(split_sentences(text, abbreviations)) < 2 for text in texts)
        return cls(
            usual_length=int(np.quantile(lengths, _USUAL, method="inverted_cdf")),
            longest=int(lengths.max()),
            single_sentences=num_single >= _SINGLE * len(texts),
            abbreviations=abbreviations,
        )

    def is_several(self, text: str, num_subwords: int) -> bool:
        """Returns whether a text has more sentences than was usual in the training text.

        Args:
            text: the text.
            num_subwords: the number of its subwords.
        """
        if not self.single_sentences and num_subwords <= self.usual_length:
            return False
        return len(split_sentences(text, self.abbreviations)) > 1


def _find_abbreviations(texts: Iterable[str]) -> tuple[str, ...]:
    """Returns short words that, inside a text, have a full stop more often than not."""
    with_stop: collections.Counter[str] = collections.Counter()
    without: collections.Counter[str] = collections.Counter()
    for text in texts:
        words = text.split()
        for word in words[:-1]:
            key = word_key(word)
            if re.search(r"[^\W_]\.\W*$", word):
                with_stop[key] += 1
            elif key.strip("0"):  # A number may be an ordinal in one place and not in another.
                without[key] += 1
        # A full stop after the last word ends the sentence, so the word counts as one without.
        without.update(map(word_key, words[-1:]))
    return tuple(
        sorted(
            word
            for word, count in with_stop.items()
            if count >= max(_MIN_COUNT, without[word] + 1) and len(word) <= _LONGEST_ABBREVIATION
        )
    )
