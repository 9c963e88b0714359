"""Terms met, BLEU and time of a translator with a glossary for each sentence, and without.

Usage: python benchmarks/glossary.py --model DIR --source FILE --reference FILE [--lines 300]
                                     [--terms 1 3] [--rounds 3]

The terms of a sentence are words of its reference that attention aligns with a word of the source,
drawn at random, at most --terms. They are met as whole words. Prints a table of docs/decoding.md.
"""

import argparse
import datetime
import itertools
import random
import re
import statistics
import time

from alternate import hardware

from keras_transformer import Translator
from keras_transformer.data.corpora import open_text
from keras_transformer.evaluation import corpus_bleu
from keras_transformer.inference import Glossary

WORD = re.compile(r"[^\W\d_]{4,}")


def draw_terms(translator, sources, references, most):
    """Returns the terms of each sentence, a dict from words of the source to the reference's."""
    generator, terms = random.Random(1), []
    alignments = translator.align(sources, references)
    for source, reference, alignment in zip(sources, references, alignments, strict=True):
        pairs = [(source.split()[i], reference.split()[j]) for i, j in alignment.pairs]
        pairs = [[word.strip(".,;:!?\"'()-") for word in pair] for pair in pairs]
        pairs = [pair for pair in pairs if all(map(WORD.fullmatch, pair))]
        generator.shuffle(pairs)
        terms.append(dict(pairs[:most]))
    return terms


def translate(translator, sources, terms):
    """Returns the answers to sentences with terms of their own, and the seconds."""
    glossaries = [Glossary(own) if own else None for own in terms]
    start = time.perf_counter()
    pairs = zip(sources, glossaries, strict=True)
    answers = [translator.translate([s], glossary=glossary)[0] for s, glossary in pairs]
    return answers, time.perf_counter() - start


def share_met(answers, terms):
    pairs = zip(answers, terms, strict=True)
    found = [
        re.search(rf"\b{re.escape(word)}\b", answer) is not None
        for answer, own in pairs
        for word in own.values()
    ]
    return sum(found) / len(found)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("--model", "--source", "--reference"):
        parser.add_argument(name, required=True)
    for name, default in (("--lines", 300), ("--rounds", 3)):
        parser.add_argument(name, type=int, default=default)
    parser.add_argument("--terms", type=int, nargs="+", default=[1, 3])
    options = parser.parse_args()
    translator = Translator.load(options.model)
    names = options.source, options.reference
    sources, references = (list(itertools.islice(open_text(n), options.lines)) for n in names)
    print(f"{datetime.date.today()}, {hardware()}, {len(sources)} sentences, one at a time")
    print("| terms | without: met, BLEU, seconds | glossary: met, BLEU, seconds |\n|---|---|---|")
    for most in options.terms:
        terms = draw_terms(translator, sources, references, most)
        cells = {}
        for _ in range(1 + options.rounds):  # The first round compiles.
            for name, own in (("without", [{}] * len(terms)), ("glossary", terms)):
                answers, seconds = translate(translator, sources, own)
                cells.setdefault(name, []).append(seconds)
                bleu = corpus_bleu(answers, [references]).score
                cells[f"{name} score"] = f"{share_met(answers, terms):.1%}, {bleu:.1f}"
        row = [
            f"{cells[f'{name} score']}, {statistics.median(cells[name][1:]):.1f}"
            for name in ("without", "glossary")
        ]
        print(f"| up to {most} | {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
