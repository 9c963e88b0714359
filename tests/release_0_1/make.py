"""Models and trainings as version 0.1 wrote them to `files.tar.xz`, and what they answer.

Commit 1f9a2424 has the program that wrote the file.
"""

import pathlib
import tempfile

from keras_transformer import Translator
from keras_transformer.data import PairsCorpus, SubwordTokenizer
from keras_transformer.decoding import BeamSearch, GreedySearch, NoRepeatNgrams
from keras_transformer.inference import SentenceProfile
from keras_transformer.models import TrainingRecipe, Transformer, TransformerConfig
from keras_transformer.parsing import TreebankCorpus
from keras_transformer.training import TrainingSettings, train
from tests.toy_treebank import write_toy_trees

ARCHIVE = pathlib.Path(__file__).parent / "files.tar.xz"
WORDS = [f"{first}{second}" for first in "bdgk" for second in "aeiou"]
TEXTS = ["ba be bi", "go gu ka ke ki. do du", "", "ko unknown ku ba"]
SENTENCES = [["ba", "be", "bi"], ["go", "(", "ka", "ke"]]
SMALL = {
    "num_encoder_layers": 1,
    "num_decoder_layers": 1,
    "d_model": 8,
    "intermediate_dim": 16,
    "num_heads": 2,
}

# The presets have other values now.
RECIPE = {"optimizer": "adam", "warmup_steps": 4, "average_checkpoints": 2}


def make_translator():
    tokenizer = SubwordTokenizer([*WORDS, *(f"{word}@@" for word in WORDS)])
    config = TransformerConfig(vocab_size=tokenizer.vocab_size, **SMALL)
    return Translator(
        Transformer(config),
        tokenizer,
        search=BeamSearch(3, 0.6, n_best=2, constraints=(NoRepeatNgrams(2),)),
        extra_length=5,
        recipe=TrainingRecipe(warmup_steps=7),
        sentence_profile=SentenceProfile(6, 9, True, ("ca",)),
    )


def train_translator(directory, max_steps):
    """Trains on pairs in which the target is the source backwards."""
    lines = [[WORDS[(7 * n + k * k) % 20] for k in range(n % 6 + 1)] for n in range(40)]
    corpus = PairsCorpus([(" ".join(line), " ".join(line[::-1])) for line in lines])
    settings = TrainingSettings(
        preset="tiny",
        model=SMALL,
        recipe={**RECIPE, "tokens_per_batch": 64, "peak_learning_rate": 0.004},
        tokenizer="subword",
        vocab_size=None,
        max_steps=max_steps,
        evaluate_every=3,
        checkpoint_every=3,
        deterministic=True,
    )
    return train(directory, corpus, corpus, settings, report=lambda line: None)


def train_parser(directory, max_steps):
    """Trains on trees of a toy grammar."""
    with tempfile.TemporaryDirectory() as folder:
        corpus = TreebankCorpus(write_toy_trees(pathlib.Path(folder) / "trees", 20, seed=1))
        settings = TrainingSettings(
            preset="parsing_small",
            task="parsing",
            model={**SMALL, "dropout": 0.1, "attention_dropout": 0.0},
            recipe={**RECIPE, "tokens_per_batch": 256, "peak_learning_rate": 0.003},
            tokenizer="subword",
            vocab_size=None,
            max_steps=max_steps,
            evaluate_every=3,
            checkpoint_every=3,
            deterministic=True,
        )
        return train(directory, corpus, corpus, settings, report=lambda line: None)


def hypotheses(translator):
    return [[(one.text, one.score) for one in of_text] for of_text in translator.hypotheses(TEXTS)]


# Each compiles a function.
ANSWERS = {
    "translate": lambda translator: translator.translate(TEXTS),
    "greedy": lambda translator: translator.translate(TEXTS, search=GreedySearch()),
    "hypotheses": hypotheses,
    "score": lambda translator: [s.log_probability for s in translator.score(TEXTS, TEXTS)],
}


def translator_answers(translator):
    """The answers of a translator, as JSON has them."""
    return {name: answer(translator) for name, answer in ANSWERS.items()}


def parser_answers(parser):
    """The answers of a parser, as JSON has them."""
    return [
        [(str(one.tree), one.score) for one in of_sentence]
        for of_sentence in parser.parses(SENTENCES)
    ]
