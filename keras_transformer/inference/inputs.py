"""Validates and encodes the inputs of a `Translator`."""

import textwrap
from collections.abc import Sequence

from keras_transformer.errors import UserError


def checked_texts(name: str, texts: Sequence[str]) -> list[str]:
    """Returns texts as a list; raises a ValueError if one of them is not a string."""
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


def checked_prefixes(prefixes: Sequence[str], num_texts: int) -> list[str]:
    """Returns prefixes as a list; raises a ValueError unless there is one for each text."""
    prefixes = checked_texts("prefixes", prefixes)
    if len(prefixes) != num_texts:
        raise ValueError(
            "There must be as many prefixes as texts. "
            f"Received: {len(prefixes)} prefixes and {num_texts} texts"
        )
    return prefixes


def check_vocabulary(side: str, tokenizer, vocab_size: int) -> None:
    """Raises a ValueError unless a tokenizer has as many ids as the model."""
    if tokenizer.vocab_size != vocab_size:
        raise ValueError(
            f"The {side} tokenizer must have as many pieces as the model has {side} ids, "
            f"{vocab_size}. Received: {side}_tokenizer.vocab_size={tokenizer.vocab_size}"
        )


def encode_words(tokenizer, name: str, texts) -> tuple[list[list[int]], list[list[int]]]:
    """Returns the ids of each text, and the number of ids of each of its words."""
    lines = [text.split() for text in checked_texts(name, texts)]
    encoded = iter(tokenizer.encode_batch([word for words in lines for word in words]))
    pieces = [[next(encoded) for _ in words] for words in lines]
    ids = [[token for word in words for token in word] for words in pieces]
    return ids, [[len(word) for word in words] for words in pieces]


def encode_prefixes(
    tokenizer, prefixes: Sequence[str] | None, subwords: list[list[int]], limits: list[int]
) -> list[list[int]]:
    """Returns the ids that each translation begins with; none for a source without subwords."""
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


def check_targets(method: str, sources, targets, max_length: int | None) -> None:
    """Raises an error unless each source has a target that the model's positions reach."""
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
