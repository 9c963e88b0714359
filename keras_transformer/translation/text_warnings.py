"""`text_warnings`: what is probably wrong with the text of a training."""

import itertools
import re
from collections.abc import Iterator

from keras_transformer.data.corpora import Corpus

# A choice: 29,000 image captions are enough for captions, see docs/results.md.
FEW_PAIRS = 10_000
_SHARE_OF_COPIES = 0.01
_SAMPLE = 100_000  # pairs whose words are collected
_WORD = re.compile(r"\w+")


def text_warnings(train_corpus: Corpus, valid_corpus: Corpus, adapts: bool) -> Iterator[str]:
    """Yields warnings with figures; to adapt a model (`adapts`), few pairs are enough."""
    valid = list(valid_corpus)
    valid_sources, leaked = {source.strip() for source, _ in valid}, set()
    words: tuple[set, set] = set(), set()
    empty: list[int] = []
    num_pairs = num_copies = 0
    for num_pairs, (source, target) in enumerate(train_corpus, start=1):
        if len(empty) < 3 and not (source.strip() and target.strip()):
            empty.append(num_pairs)
        num_copies += source == target != ""
        if source.strip() in valid_sources:
            leaked.add(source.strip())
        if num_pairs <= _SAMPLE:
            words[0].update(_words(source))
            words[1].update(_words(target))
    if num_pairs < FEW_PAIRS and not adapts:
        few = f"{num_pairs:,} training pairs are few (below {FEW_PAIRS:,}): expect poor answers to"
        yield f"{few} new text. Add text, or adapt a published model (--start-from)."
    if empty:
        # Pairs of the file may be held out.
        numbers = getattr(train_corpus, "numbers", range(1, num_pairs + 1))
        shown = ", ".join(f"{numbers[number - 1]:,}" for number in empty)
        yield f"The first pairs with an empty side are {shown} (from 1)."
    first = list(itertools.islice(train_corpus, 10))
    are_names = [all(map(_WORD.fullmatch, pair)) for pair in first]
    if len(first) > 1 and are_names[0] and not any(are_names[1:]):
        advice = f"remove the line, or for --tsv give --columns {','.join(first[0])}"
        yield f"The first pair, {first[0]}, looks like names of columns: {advice}."
    if num_copies >= _SHARE_OF_COPIES * num_pairs:
        share = f"{num_copies:,} of {num_pairs:,} training pairs ({num_copies / num_pairs:.1%})"
        yield f"{share} have the same text on both sides: the model learns to copy."
    if num_leaks := sum(source.strip() in leaked for source, _ in valid):
        share = f"{num_leaks:,} of {len(valid):,} validation sources ({num_leaks / len(valid):.1%})"
        yield f"{share} are in the training text too: their scores are too good."

    def share_known(side, known):
        found = [word in known for pair in valid for word in _words(pair[side])]
        return sum(found) / max(len(found), 1)

    in_sources, in_targets = (share_known(0, known) for known in words)
    if in_targets > in_sources and share_known(1, words[0]) > share_known(1, words[1]):
        shares = f"{in_targets:.0%} of its source words are in the training targets, "
        shares += f"{in_sources:.0%} in the training sources"
        yield f"Source and target of the validation text seem exchanged: {shares}."


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())
