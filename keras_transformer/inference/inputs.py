"""What a translator is given, checked and in ids."""

import textwrap
from collections.abc import Sequence

from keras_transformer.errors import UserError


def checked_texts(name, texts) -> list[str]:
    """Returns texts as a list, or raises a ValueError if one of them is no text."""
    if isinstance(texts, str | bytes):
        raise ValueError(
            f"{name} must be a list of strings; put one text into a list. "
            f"Received: {name}={texts!r}"
        )
    texts = list(texts)
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            message = f"{name} must be a list of strings."
            raise ValueError(f"{message} Received: {name}[{index}]={text!r}")
    return texts


def checked_prefixes(prefixes, num_texts) -> list[str]:
    """Returns prefixes as a list, or raises a ValueError if there is not one for each text."""
    prefixes = checked_texts("prefixes", prefixes)
    if len(prefixes) != num_texts:
        raise ValueError(
            "There must be as many prefixes as texts. "
            f"Received: {len(prefixes)} prefixes and {num_texts} texts"
        )
    return prefixes


def check_vocabulary(side, tokenizer, vocab_size):
    """Raises a ValueError if a tokenizer has other ids than the model."""
    if tokenizer.vocab_size != vocab_size:
        raise ValueError(
            f"The {side} tokenizer must have as many pieces as the model has {side} ids, "
            f"{vocab_size}. Received: {side}_tokenizer.vocab_size={tokenizer.vocab_size}"
        )


def encode_words(tokenizer, name, texts) -> tuple[list[list[int]], list[list[int]]]:
    """Splits texts into words by white space, and these into subwords.

    Args:
        tokenizer: a tokenizer whose pieces do not go beyond a word.
        name: name of the texts, for the error.
        texts: sequence of `str`.

    Returns:
        The ids of each text, and the numbers of ids of its words.

    Example:

    >>> from keras_transformer.data import SubwordTokenizer
    >>> encode_words(SubwordTokenizer(["a", "b"]), "texts", ["a b a", ""])
    ([[4, 5, 4], []], [[1, 1, 1], []])
    """
    lines = [text.split() for text in checked_texts(name, texts)]
    encoded = iter(tokenizer.encode_batch([word for words in lines for word in words]))
    pieces = [[next(encoded) for _ in words] for words in lines]
    ids = [[token for word in words for token in word] for words in pieces]
    return ids, [[len(word) for word in words] for words in pieces]


def encode_prefixes(tokenizer, prefixes: Sequence[str] | None, subwords, limits) -> list[list[int]]:
    """Returns the ids that each translation begins with; a source without subwords has none.

    Args:
        tokenizer: the target's tokenizer.
        prefixes: sequence of `str`, or None for no beginnings.
        subwords: the ids of each source.
        limits: the most tokens of each translation, EOS included.

    Raises:
        ValueError: if there are not as many prefixes as sources.
        UserError: if a prefix leaves its translation no room.
    """
    if prefixes is None:
        return [[] for _ in subwords]
    texts = checked_prefixes(prefixes, len(subwords))
    encoded = tokenizer.encode_batch(texts)
    encoded = [ids if source else [] for ids, source in zip(encoded, subwords, strict=True)]
    for text, ids, limit in zip(texts, encoded, limits, strict=True):
        if ids and len(ids) >= limit:
            raise UserError(
                f"The prefix {textwrap.shorten(text, 60)!r} has {len(ids)} tokens; its translation "
                f"may have at most {limit}, the end of the sentence included."
            )
    return encoded


def check_targets(method, sources, targets, max_length):
    """Raises if targets and sources are no pairs, or a target is longer than the model reads.

    Args:
        method: what is called with them, for the error.
        sources, targets: lists of lists of ids.
        max_length: the model's learned positions, or None.

    Raises:
        ValueError: if there are not as many targets as sources.
        UserError: if a target is too long.
    """
    if len(sources) != len(targets):
        raise ValueError(
            f"{method}() needs as many targets as sources. "
            f"Received: {len(sources)} sources and {len(targets)} targets"
        )
    for index, ids in enumerate(targets):
        if max_length is not None and len(ids) + 1 > max_length:
            raise UserError(
                f"Target {index} (counted from 0) has {len(ids) + 1} tokens with EOS; the "
                f"model has learned positions for at most {max_length}."
            )
